cdef Py_ssize_t find_blocks(
    const int[:, ::1] after, const unsigned char[::1] accepts,
    const long long[::1] start, const int[::1] targets,
    const long long[::1] into, const int[::1] sources,
    const int[::1] level, int[::1] block
) except? -1
