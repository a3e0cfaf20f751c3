// Memory of the emulated device, and host memory that its copies may read and write while the host goes on.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace emulator {

// A caching allocator in the order of streams, as CUDA's: freed memory serves the next request of its size on the stream
// that it was allocated on, at once. That stream overwrites it when it is freed there and when it is allocated again, so
// that work which still needs it is seen.
c10::DeviceAllocator& device_allocator();

// Page-locked memory; freed memory is overwritten.
c10::Allocator& pinned_allocator();
bool is_pinned(const void* pointer);
// Lock memory that exists, as CUDA's runtime does, and unlock it.
void lock_pages(const void* pointer, size_t size_bytes);
void unlock_pages(const void* pointer);

}  // namespace emulator
