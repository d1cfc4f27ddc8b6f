from mqstore.kernels.common.loads cimport i32, i64
