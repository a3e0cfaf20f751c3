// Operators with kernels of their own: memory, views and copies.
#include "memory.h"
#include "operators.h"
#include "queues.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <atomic>
#include <thread>

namespace emulator {
namespace {

// HPU's bit besides: torch lets a tensor take the data of another device among those that it lists, to which no device of this
// kind belongs. The bit of PrivateUse1, which is the higher one, decides which kernels run.
constexpr c10::DispatchKeySet KEYS({c10::DispatchKey::PrivateUse1, c10::DispatchKey::HPU});

std::atomic<int64_t> awaited_copies{0};

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &device_allocator(), KEYS, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &device_allocator(), KEYS, c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                      std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(self, sizes, strides, offset);
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(sizes), format);
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides));
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef sizes) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(sizes));
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return at::native::set_tensor_(self, source);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  return at::native::set_(self, source);
}

at::Tensor& set_storage_at(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef sizes,
                           c10::SymIntArrayRef strides) {
  return at::cpu::set__symint(self, source, offset, sizes, strides);
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const at::Tensor& on_host = source.is_cpu() ? source : target;
  const bool crosses = on_host.is_cpu();
  const void* locked = crosses && non_blocking && is_pinned(on_host.storage().data()) ? on_host.storage().data() : nullptr;
  // the job holds what the host owns; the device's memory is reused in the order of streams
  queue(current_stream()).push([locked, from = on_cpu(source), to = on_cpu(target)] {
    at::AutoDispatchBelowADInplaceOrView below;
    TORCH_CHECK(locked == nullptr || is_pinned(locked), "host memory was unlocked before its copy ended");
    to.copy_(from);
  });
  if (crosses && locked == nullptr) {
    ++awaited_copies;
    queue(current_stream()).synchronize();
  }
  return target;
}

int64_t count_awaited_copies() {
  return awaited_copies;
}

void lock(int64_t address, int64_t size_bytes) {
  lock_pages(reinterpret_cast<const void*>(address), static_cast<size_t>(size_bytes));
}

void unlock(int64_t address) {
  unlock_pages(reinterpret_cast<const void*>(address));
}

void stall(double time_s) {
  queue(current_stream()).push([time_s] { std::this_thread::sleep_for(std::chrono::duration<double>(time_s)); });
}

bool is_locked(int64_t address) {
  return is_pinned(reinterpret_cast<const void*>(address));
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  at::native::resize_(target, source.sizes(), std::nullopt);
  return copy_from(source, target, false);
}

at::Scalar read_scalar(const at::Tensor& self) {
  queue(current_stream()).synchronize();
  return on_cpu(self).item();
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

void delay(int64_t seed, double longest_s) {
  set_delays(static_cast<uint64_t>(seed), longest_s);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", as_strided);
  library.impl("resize_", resize_);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("view", view);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("set_.source_Storage", set_storage);
  library.impl("set_.source_Storage_storage_offset", set_storage_at);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", read_scalar);
  library.impl("record_stream", record_stream);
}

TORCH_LIBRARY_FRAGMENT(emulator, library) {
  library.def("awaited_copies() -> int", &count_awaited_copies);
  library.def("is_locked(int address) -> bool", &is_locked);
  library.def("stall(float time_s) -> ()", &stall);
  library.def("lock(int address, int size_bytes) -> ()", &lock);
  library.def("unlock(int address) -> ()", &unlock);
  library.def("delay(int seed, float longest_s) -> ()", &delay);
}

}  // namespace emulator
