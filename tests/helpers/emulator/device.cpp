// The emulated device as torch sees it: guard, hooks, random generator.
#include "generator.h"
#include "memory.h"
#include "queues.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace emulator {
namespace {

constexpr auto KIND = c10::DeviceType::PrivateUse1;
const c10::Device DEVICE(KIND, 0);

std::shared_ptr<Event>& event_in(void* handle) {
  return *static_cast<std::shared_ptr<Event>*>(handle);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return KIND;
  }
  c10::Device exchangeDevice(c10::Device) const override {
    return DEVICE;
  }
  c10::Device getDevice() const override {
    return DEVICE;
  }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override {
    return 1;
  }

  c10::Stream getStream(c10::Device) const override {
    return stream(current_stream());
  }
  c10::Stream getDefaultStream(c10::Device) const override {
    return stream(DEFAULT_STREAM);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return stream(pooled_stream());
  }
  c10::Stream getNewStream(c10::Device, int) const override {
    return stream(pooled_stream());
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(exchange_stream(next.id()));
  }
  bool queryStream(const c10::Stream& asked) const override {
    return queue(asked.id()).is_idle();
  }
  void synchronizeStream(const c10::Stream& awaited) const override {
    queue(awaited.id()).synchronize();
  }
  void synchronizeDevice(c10::DeviceIndex) const override {
    synchronize_all();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& user) const override {
    device_allocator().recordStream(data, user);
  }

  void record(void** handle, const c10::Stream& of, c10::DeviceIndex, c10::EventFlag) const override {
    if (*handle == nullptr) {
      *handle = new std::shared_ptr<Event>(std::make_shared<Event>());
    }
    event_in(*handle)->record(of.id());
  }
  void block(void* handle, const c10::Stream& waiting) const override {
    if (handle != nullptr) {
      event_in(handle)->block(waiting.id());
    }
  }
  bool queryEvent(void* handle) const override {
    return handle == nullptr || event_in(handle)->has_passed();
  }
  void synchronizeEvent(void* handle) const override {
    if (handle != nullptr) {
      event_in(handle)->synchronize();
    }
  }
  void destroyEvent(void* handle, c10::DeviceIndex) const noexcept override {
    delete static_cast<std::shared_ptr<Event>*>(handle);
  }
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    event_in(start)->synchronize();
    event_in(end)->synchronize();
    return std::chrono::duration<double, std::milli>(event_in(end)->time() - event_in(start)->time()).count();
  }

 private:
  static c10::Stream stream(int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, DEVICE, id);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return 1;
  }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  bool isPinnedPtr(const void* pointer) const override {
    return is_pinned(pointer);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_allocator();
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<Generator>();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size_bytes) const override {
    c10::DataPtr larger = device_allocator().allocate(size_bytes);
    const size_t kept_bytes = std::min(storage.nbytes(), size_bytes);
    if (kept_bytes > 0) {
      device_allocator().copy_data(larger.get(), storage.data(), kept_bytes);
    }
    storage.set_data_ptr_noswap(std::move(larger));
    storage.set_nbytes(size_bytes);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// Kernels have been given their random state when they were issued, so that reading and setting it waits for none.
at::Tensor random_state() {
  std::lock_guard<std::mutex> lock(default_generator().unsafeGetGeneratorImpl()->mutex_);
  return at::Tensor(default_generator().unsafeGetGeneratorImpl()->get_state());
}

void set_random_state(const at::Tensor& state) {
  std::lock_guard<std::mutex> lock(default_generator().unsafeGetGeneratorImpl()->mutex_);
  default_generator().unsafeGetGeneratorImpl()->set_state(*state.unsafeGetTensorImpl());
}

void seed(int64_t value) {
  std::lock_guard<std::mutex> lock(default_generator().unsafeGetGeneratorImpl()->mutex_);
  default_generator().unsafeGetGeneratorImpl()->set_current_seed(static_cast<uint64_t>(value));
}

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace

TORCH_LIBRARY_FRAGMENT(emulator, library) {
  library.def("random_state() -> Tensor", &random_state);
  library.def("set_random_state(Tensor state) -> ()", &set_random_state);
  library.def("seed(int value) -> ()", &seed);
}

const at::Generator& default_generator() {
  static auto* made = new at::Generator(at::make_generator<Generator>());
  return *made;
}

}  // namespace emulator
