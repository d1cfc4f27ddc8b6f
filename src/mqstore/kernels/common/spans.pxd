from mqstore.kernels.common.loads cimport copy, u8
