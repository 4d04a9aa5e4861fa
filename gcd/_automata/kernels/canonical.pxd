cdef int refine_bytes(
    const unsigned char[:, ::1] maps, unsigned char[::1] class_of_byte, int[::1] first
) except? -1
