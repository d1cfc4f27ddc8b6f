from mqstore.kernels.common.loads cimport i32, i64, put32, put64
