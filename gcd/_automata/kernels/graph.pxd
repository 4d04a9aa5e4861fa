cdef int[::1] list_edges(
    const int[:, ::1] after, long long[::1] start, int[::1] seen
)
cdef void reverse_edges(
    const long long[::1] start, const int[::1] targets,
    long long[::1] into, int[::1] sources, long long[::1] fill
) noexcept
cdef void find_levels(
    const long long[::1] into, const int[::1] sources, const unsigned char[::1] accepts,
    int[::1] level, int[::1] queue
) noexcept
cdef Py_ssize_t number_breadth_first(
    const long long[::1] start, const int[::1] targets, const int[::1] level,
    int[::1] number, int[::1] queue
) noexcept
