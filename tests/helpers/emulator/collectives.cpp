// Collectives of the emulated device: Gloo's, which runs when their stream comes to them, as NCCL's kernels do.
#include "operators.h"
#include "queues.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

namespace emulator {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Reduction = c10::intrusive_ptr<c10d::ReduceOp>;
using Handle = c10::intrusive_ptr<c10d::Work>;

// The group whose Gloo runs queued collectives, apart from the host's, which run at once; null: that of the collective.
Group& own_group() {
  static auto* group = new Group();
  return *group;
}

void collect_by(const Group& group) {
  own_group() = group;
}

// A collective that has been queued: the current stream follows it, so that the host need not wait.
struct Queued final : c10d::Work {
  explicit Queued(std::vector<at::Tensor> tensors)
      : tensors_(std::move(tensors)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{{c10::kPrivateUse1, 0}})) {
    future_->markCompleted(c10::IValue(tensors_));
  }
  bool wait(std::chrono::milliseconds) override {
    return true;
  }
  std::vector<at::Tensor> result() override {
    return tensors_;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  std::vector<at::Tensor> tensors_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

std::vector<at::Tensor> all_on_cpu(at::TensorList tensors) {
  std::vector<at::Tensor> same;
  for (const at::Tensor& each : tensors) {
    same.push_back(on_cpu(each));
  }
  return same;
}

template <typename Options>
Options within(Options options, int64_t timeout_ms) {
  options.timeout = std::chrono::milliseconds(timeout_ms);
  return options;
}

// Queue a collective of the group's on the same memory.
template <typename Run>
Handle queued(at::TensorList tensors, const Group& group, Run run) {
  queue(current_stream()).push([group, run, same = all_on_cpu(tensors)]() mutable {
    run(*(own_group() ? own_group() : group)->getBackend(c10::kCPU), same)->wait();
  });
  return c10::make_intrusive<Queued>(tensors.vec());
}

std::tuple<std::vector<at::Tensor>, Handle> all_reduce(at::TensorList tensors, const Group& group, const Reduction& reduction,
                                                       const std::optional<at::Tensor>&, bool, int64_t timeout_ms) {
  const auto options = within(c10d::AllreduceOptions{*reduction}, timeout_ms);
  return {tensors.vec(), queued(tensors, group, [options](c10d::Backend& gloo, std::vector<at::Tensor>& same) {
            return gloo.allreduce(same, options);
          })};
}

std::tuple<std::vector<at::Tensor>, Handle> broadcast(at::TensorList tensors, const Group& group, int64_t root, int64_t,
                                                      bool, int64_t timeout_ms) {
  const auto options = within(c10d::BroadcastOptions{root, 0}, timeout_ms);
  return {tensors.vec(), queued(tensors, group, [options](c10d::Backend& gloo, std::vector<at::Tensor>& same) {
            return gloo.broadcast(same, options);
          })};
}

std::tuple<std::vector<std::vector<at::Tensor>>, Handle> all_gather(const std::vector<std::vector<at::Tensor>>& gathered,
                                                                    at::TensorList sent, const Group& group, bool,
                                                                    int64_t timeout_ms) {
  const auto options = within(c10d::AllgatherOptions{}, timeout_ms);
  std::vector<std::vector<at::Tensor>> targets;
  for (const auto& each : gathered) {
    targets.push_back(all_on_cpu(each));
  }
  return {gathered, queued(sent, group, [options, targets](c10d::Backend& gloo, std::vector<at::Tensor>& same) mutable {
            return gloo.allgather(targets, same, options);
          })};
}

Handle reduce(at::TensorList tensors, const Group& group, const Reduction& reduction, int64_t root, int64_t, bool,
              int64_t timeout_ms) {
  const auto options = within(c10d::ReduceOptions{*reduction, root, 0}, timeout_ms);
  return queued(tensors, group, [options](c10d::Backend& gloo, std::vector<at::Tensor>& same) {
    return gloo.reduce(same, options);
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(emulator, library) {
  library.def("collect_by(__torch__.torch.classes.c10d.ProcessGroup group) -> ()", &collect_by);
}

TORCH_LIBRARY_IMPL(c10d, PrivateUse1, library) {
  library.impl("allgather_", all_gather);
  library.impl("allreduce_", all_reduce);
  library.impl("broadcast_", broadcast);
  library.impl("reduce_", reduce);
}

}  // namespace emulator
