from mqstore.kernels.loads cimport copy
