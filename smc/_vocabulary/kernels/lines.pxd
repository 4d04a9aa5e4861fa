cdef class Lines:
    cdef const unsigned int[:, ::1] klass
    cdef const int[:, ::1] by_order
    cdef const long long[:, ::1] start
    cdef const long long[::1] automaton
    cdef const double[:, ::1] by_class
    cdef const long long[:, ::1] tokens
    cdef const double[:, ::1] by_token

    cdef Py_ssize_t num_candidates(self, Py_ssize_t row) noexcept nogil
