// Random numbers of the emulated device: those of the CPU's generator with the same state.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

namespace emulator {

struct Generator final : at::CPUGeneratorImpl {
  Generator() {
    device_ = c10::Device(c10::DeviceType::PrivateUse1, 0);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

const at::Generator& default_generator();

}  // namespace emulator
