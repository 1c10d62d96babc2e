/* A library that is linked to a copy of the runtime. */
int hipMalloc(void **, unsigned long);
int hipSetDevice(int);

int set_device(int device)
{
    return hipSetDevice(device);
}

int allocate(unsigned long bytes)
{
    void *pointer;
    return hipMalloc(&pointer, bytes);
}
