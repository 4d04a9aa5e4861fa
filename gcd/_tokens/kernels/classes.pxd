cdef class Views:
    cdef int[::1] class_of
    cdef int[::1] size
    cdef int[::1] first_new
    cdef int[::1] next_new
    cdef int[::1] goal
    cdef int[::1] free
    cdef int[::1] number
    cdef int[::1] touched

cdef void refine_views(
    Views partition, const int[::1] found, const int[::1] target, Py_ssize_t count
) noexcept nogil
