// Operators of the emulated device: the CPU's kernels, run as jobs of the current stream.
#pragma once

#include <ATen/core/Tensor.h>

namespace emulator {

// Return the same memory as a tensor of the CPU; it keeps nothing alive.
at::Tensor on_cpu(const at::Tensor& tensor);

}  // namespace emulator
