/* A library that is linked to a copy of the runtime. */
int hipMalloc(void **, unsigned long);
int hipSetDevice(int);
int hipDeviceReset(void);

int set_device(int device)
{
    return hipSetDevice(device);
}

int reset(void)
{
    return hipDeviceReset();
}

int allocate(unsigned long bytes)
{
    void *pointer;
    return hipMalloc(&pointer, bytes);
}
