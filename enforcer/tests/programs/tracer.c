/* A tool whose file is called like a runtime, and which has no function of one. */
int tracer_version = 1;
