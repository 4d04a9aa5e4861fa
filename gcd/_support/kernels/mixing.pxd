cdef long long mix(long long value) noexcept nogil
