cdef class Tree:
    cdef const unsigned char[::1] byte
    cdef const unsigned char[::1] column
    cdef const int[::1] depth
    cdef const int[::1] skip
    cdef const int[::1] entry

cdef Py_ssize_t walk(
    int state, Py_ssize_t first, Py_ssize_t last, const int[:, ::1] delta, Tree tree,
    int[::1] states, int[::1] found, int[::1] target, Py_ssize_t count
) noexcept nogil

cdef (Py_ssize_t, Py_ssize_t) walk_unit(
    const short[:, ::1] unit, int phase, Tree tree, int[::1] phases, int[::1] passed,
    int[::1] found, int[::1] goal, int[:, ::1] exits
) noexcept nogil
