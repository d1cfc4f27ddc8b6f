from mqstore.kernels.common.loads cimport same, u8
