cdef Py_ssize_t refine(
    const long long[::1] start, const int[::1] targets, const long long[::1] sums,
    const long long[::1] into, int[::1] block, Py_ssize_t num_blocks, long long salt
) except? -1
