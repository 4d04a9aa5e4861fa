cdef (int, long long) next_boundary(
    int state, const int[:, ::1] delta, const long long[::1] width, long long[::1] weight
) noexcept
