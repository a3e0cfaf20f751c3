#include "memory.h"

#include "queues.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Stream.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <unordered_map>
#include <vector>

namespace emulator {
namespace {

constexpr size_t PIECE_BYTES = 512;  // as CUDA's allocator rounds
constexpr size_t CAPACITY_BYTES = size_t{4} << 30;
constexpr int POISON = 0xFF;  // floats read as NaN, integers as -1

struct Piece {
  size_t size_bytes;
  size_t space_bytes;  // of the memory, which another piece may have had
  size_t requested_bytes;
  int64_t stream;
  std::vector<int64_t> other_streams;
};

struct Freed {
  void* pointer;
  Piece piece;
  std::vector<std::shared_ptr<Event>> pending;
};

void free_on_device(void* pointer);

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t requested_bytes) override {
    const c10::Device device(c10::DeviceType::PrivateUse1, 0);
    if (requested_bytes == 0) {
      return {nullptr, nullptr, &free_on_device, device};
    }
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t size_bytes = (requested_bytes + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
    const int64_t stream = current_stream();
    take_back_what_has_passed();
    auto [pointer, space_bytes] = cached(stream, size_bytes);
    if (pointer == nullptr) {
      pointer = reserved(size_bytes);
      space_bytes = size_bytes;
    }
    pieces_[pointer] = {size_bytes, space_bytes, requested_bytes, stream, {}};
    count_allocated(pieces_[pointer], +1);
    return {pointer, pointer, &free_on_device, device};
  }

  void free(void* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    const Piece piece = pieces_.at(pointer);
    pieces_.erase(pointer);
    count_allocated(piece, -1);
    Freed freed{pointer, piece, {}};
    for (int64_t stream : piece.other_streams) {
      freed.pending.push_back(std::make_shared<Event>());
      freed.pending.back()->record(stream);
    }
    freed_.push_back(std::move(freed));
    take_back_what_has_passed();
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = pieces_.find(data.get());
    if (found != pieces_.end() && found->second.stream != stream.id()) {
      found->second.other_streams.push_back(stream.id());
    }
  }

  void emptyCache(c10::MempoolId_t) override {
    std::lock_guard<std::mutex> lock(mutex_);
    release_cached();
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }

  void resetAccumulatedStats(c10::DeviceIndex) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto* each : byte_counts()) {
      for (auto& stat : *each) {
        stat.reset_accumulated();
      }
    }
    stats_.num_alloc_retries = 0;
    stats_.num_ooms = 0;
  }

  void resetPeakStats(c10::DeviceIndex) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto* each : byte_counts()) {
      for (auto& stat : *each) {
        stat.reset_peak();
      }
    }
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return {CAPACITY_BYTES - reserved_bytes_, CAPACITY_BYTES};
  }

  bool initialized() override {
    return true;
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &free_on_device;
  }

  void copy_data(void* to, const void* from, std::size_t size_bytes) const override {
    queue(current_stream()).push([=] { std::memcpy(to, from, size_bytes); });
  }

 private:
  std::vector<c10::CachingAllocator::StatArray*> byte_counts() {
    return {&stats_.requested_bytes, &stats_.allocated_bytes, &stats_.active_bytes, &stats_.reserved_bytes};
  }

  // Return the smallest memory that fits and its size, or null. Blocks whose sizes vary a little would otherwise each
  // have memory of their own, which takes longer to fill the first time than most jobs take.
  std::pair<void*, size_t> cached(int64_t stream, size_t size_bytes) {
    for (auto found = cache_.lower_bound({stream, size_bytes});
         found != cache_.end() && found->first <= std::pair{stream, size_bytes + size_bytes / 8}; ++found) {
      auto& [key, pointers] = *found;
      if (!pointers.empty()) {
        void* pointer = pointers.back();
        pointers.pop_back();
        overwrite(pointer, key.second);
        return {pointer, key.second};
      }
    }
    return {nullptr, 0};
  }

  // Overwrite memory at the current stream's position.
  static void overwrite(void* pointer, size_t size_bytes) {
    queue(current_stream()).push([=] { std::memset(pointer, POISON, size_bytes); });
  }

  void* reserved(size_t size_bytes) {
    if (reserved_bytes_ + size_bytes > CAPACITY_BYTES) {
      ++stats_.num_alloc_retries;
      release_cached();
    }
    if (reserved_bytes_ + size_bytes > CAPACITY_BYTES) {
      ++stats_.num_ooms;
      TORCH_CHECK_WITH(
          OutOfMemoryError, false, "the emulated device is out of memory: ", size_bytes, " bytes of ",
          CAPACITY_BYTES - reserved_bytes_, " that are free");
    }
    void* pointer = std::aligned_alloc(PIECE_BYTES, size_bytes);
    TORCH_CHECK(pointer != nullptr, "the host is out of memory");
    std::memset(pointer, POISON, size_bytes);
    count_reserved(size_bytes, +1);
    return pointer;
  }

  void take_back_what_has_passed() {
    std::vector<Freed> waiting;
    for (Freed& each : freed_) {
      if (std::all_of(each.pending.begin(), each.pending.end(), [](auto& event) { return event->has_passed(); })) {
        take_back(each);
      } else {
        waiting.push_back(std::move(each));
      }
    }
    freed_ = std::move(waiting);
  }

  void take_back(const Freed& freed) {
    if (current_stream() == freed.piece.stream) {  // others may read it until the stream follows them, which it does at the latest
      overwrite(freed.pointer, freed.piece.space_bytes);  // when it allocates the memory again
    }
    cache_[{freed.piece.stream, freed.piece.space_bytes}].push_back(freed.pointer);
    count_active(freed.piece, -1);
  }

  void release_cached() {
    synchronize_all();
    take_back_what_has_passed();
    synchronize_all();
    for (auto& [key, pointers] : cache_) {
      for (void* pointer : pointers) {
        std::free(pointer);
        count_reserved(key.second, -1);
      }
      pointers.clear();
    }
  }

  static void count(c10::CachingAllocator::StatArray& stat, size_t size_bytes, int sign) {
    auto& all = stat[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    sign > 0 ? all.increase(size_bytes) : all.decrease(size_bytes);
  }

  void count_allocated(const Piece& piece, int sign) {
    count(stats_.allocated_bytes, piece.size_bytes, sign);
    count(stats_.requested_bytes, piece.requested_bytes, sign);
    count(stats_.allocation, 1, sign);
    if (sign > 0) {
      count_active(piece, +1);
    }
  }

  void count_active(const Piece& piece, int sign) {
    count(stats_.active_bytes, piece.size_bytes, sign);
    count(stats_.active, 1, sign);
  }

  void count_reserved(size_t size_bytes, int sign) {
    reserved_bytes_ += static_cast<size_t>(sign) * size_bytes;
    count(stats_.reserved_bytes, size_bytes, sign);
    count(stats_.segment, 1, sign);
  }

  std::mutex mutex_;
  std::unordered_map<const void*, Piece> pieces_;
  std::vector<Freed> freed_;
  std::map<std::pair<int64_t, size_t>, std::vector<void*>> cache_;
  size_t reserved_bytes_ = 0;
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

DeviceMemory& memory() {
  static auto* made = new DeviceMemory();
  return *made;
}

void free_on_device(void* pointer) {
  if (pointer != nullptr) {
    memory().free(pointer);
  }
}

void free_pinned(void* pointer);

class PinnedMemory final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t size_bytes) override {
    void* pointer = std::aligned_alloc(PIECE_BYTES, (size_bytes / PIECE_BYTES + 1) * PIECE_BYTES);
    std::lock_guard<std::mutex> lock(mutex_);
    pieces_[pointer] = size_bytes;
    return {pointer, pointer, &free_pinned, c10::Device(c10::DeviceType::CPU)};
  }

  void free(void* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::memset(pointer, POISON, pieces_.at(pointer));
    pieces_.erase(pointer);
    std::free(pointer);
  }

  void lock(const void* pointer, size_t size_bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    pieces_[pointer] = size_bytes;
  }

  void unlock(const void* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    pieces_.erase(pointer);
  }

  bool holds(const void* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto after = pieces_.upper_bound(pointer);
    if (after == pieces_.begin()) {
      return false;
    }
    const auto& [start, size_bytes] = *std::prev(after);
    return pointer < static_cast<const char*>(start) + std::max<size_t>(size_bytes, 1);
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &free_pinned;
  }

  void copy_data(void* to, const void* from, std::size_t size_bytes) const override {
    std::memcpy(to, from, size_bytes);
  }

  // copies hold the host's memory until they end
  bool record_event(void*, void*, c10::Stream) override {
    return true;
  }

  void empty_cache() override {}

  at::HostStats get_stats() override {
    return {};
  }

  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

 private:
  std::mutex mutex_;
  std::map<const void*, size_t> pieces_;
};

PinnedMemory& pinned() {
  static auto* made = new PinnedMemory();
  return *made;
}

void free_pinned(void* pointer) {
  pinned().free(pointer);
}

}  // namespace

c10::DeviceAllocator& device_allocator() {
  return memory();
}

c10::Allocator& pinned_allocator() {
  return pinned();
}

bool is_pinned(const void* pointer) {
  return pinned().holds(pointer);
}

void lock_pages(const void* pointer, size_t size_bytes) {
  pinned().lock(pointer, size_bytes);
}

void unlock_pages(const void* pointer) {
  pinned().unlock(pointer);
}

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &memory())

}  // namespace emulator
