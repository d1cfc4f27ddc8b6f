from mqstore.kernels.loads cimport i32, i64, same, u8
