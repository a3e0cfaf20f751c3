// Any operator without a kernel of its own. As on a GPU, the host allocates the outputs and goes on, and the kernel runs when
// its stream comes to it. The layouts of the outputs must be known at once: the first call of each kind runs the CPU's kernel
// on zeros to learn them. A kernel whose outputs depend on data is waited for.
#include "operators.h"

#include "generator.h"
#include "queues.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

namespace emulator {
namespace {

using c10::IValue;
using c10::OperatorHandle;
using Stack = torch::jit::Stack;

struct Layout {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;  // from the argument's, where it is in the memory of one
  std::optional<size_t> of_argument;  // number of the tensor among the arguments whose memory it is in
  bool is_defined = false;
};

// What a call of one kind returns.
struct Signature {
  bool host_waits = false;
  std::vector<std::vector<Layout>> results;
  std::vector<Layout> written;  // the arguments after the call, which resizes some
};

bool is_on_device(const IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().is_privateuseone();
}

bool is_tensors(const IValue& value) {
  if (!value.isList()) {
    return false;
  }
  for (const IValue& each : value.toListRef()) {
    if (each.isTensor()) {
      return true;
    }
  }
  return false;
}

// Return the values with each tensor replaced, those in lists too.
template <typename Replace>
Stack with_tensors(c10::ArrayRef<IValue> values, Replace&& replace) {
  Stack replaced;
  for (const IValue& value : values) {
    if (value.isTensor()) {
      replaced.emplace_back(replace(value.toTensor()));
    } else if (is_tensors(value)) {
      c10::List<IValue> list(value.toList().elementType());
      for (const IValue& each : value.toListRef()) {
        list.push_back(each.isTensor() ? IValue(replace(each.toTensor())) : each);
      }
      replaced.emplace_back(std::move(list));
    } else if (value.isDevice() && value.toDevice().is_privateuseone()) {
      replaced.emplace_back(c10::Device(c10::DeviceType::CPU));
    } else {
      replaced.push_back(value);
    }
  }
  return replaced;
}

std::vector<at::Tensor> tensors_in(c10::ArrayRef<IValue> values) {
  std::vector<at::Tensor> tensors;
  with_tensors(values, [&](const at::Tensor& each) {
    tensors.push_back(each);
    return each;
  });
  return tensors;
}

Layout layout_of(const at::Tensor& tensor, const std::vector<at::Tensor>& arguments) {
  Layout layout;
  if (!tensor.defined()) {
    return layout;
  }
  layout = {tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(), {}, true};
  for (size_t number = 0; number < arguments.size(); ++number) {
    if (arguments[number].defined() && arguments[number].is_alias_of(tensor)) {
      layout.of_argument = number;
      layout.offset = tensor.storage_offset() - arguments[number].storage_offset();
    }
  }
  return layout;
}

std::string kind_of(const OperatorHandle& op, c10::ArrayRef<IValue> arguments) {
  std::ostringstream kind;
  kind << op.operator_name();
  const auto note = [&](const at::Tensor& each) {
    if (each.defined()) {
      kind << '|' << each.scalar_type() << each.sizes() << each.strides() << each.device().type()
           << each.unsafeGetTensorImpl()->is_wrapped_number();
    } else {
      kind << "|-";
    }
    return each;
  };
  for (const IValue& value : arguments) {
    if (value.isTensor() || is_tensors(value)) {
      kind << ';';
      with_tensors(value, note);
    } else if (!value.isGenerator()) {
      kind << ';' << value;
    }
  }
  return kind.str();
}

// A number of the program's ranks below tensors when the type of the result is chosen; its copy must, too.
at::Tensor as_number_like(const at::Tensor& original, const at::Tensor& copy) {
  if (original.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

at::Tensor zeros_like_layout(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return tensor;
  }
  const auto options = tensor.options().device(at::kCPU);
  return as_number_like(tensor, at::empty_strided(tensor.sizes(), tensor.strides(), options).zero_());
}

// ---- random numbers ------------------------------------------------------------------------------------------------

// The device's generator, as a generator of the CPU for one call; the number of its argument.
struct Random {
  std::optional<size_t> argument;
  at::Generator device;

  static Random of(const OperatorHandle& op, c10::ArrayRef<IValue> arguments) {
    const auto& declared = op.schema().arguments();
    for (size_t number = 0; number < declared.size(); ++number) {
      const auto type = declared[number].type();
      const auto* optional = type->castRaw<c10::OptionalType>();
      const auto kind = optional ? optional->getElementType()->kind() : type->kind();
      if (kind == c10::TypeKind::GeneratorType) {
        const bool is_given = arguments[number].isGenerator();
        return {number, is_given ? arguments[number].toGenerator() : default_generator()};
      }
    }
    return {};
  }

  at::Generator on_cpu() const {
    at::Generator copy = at::make_generator<at::CPUGeneratorImpl>();
    std::lock_guard<std::mutex> lock(device.unsafeGetGeneratorImpl()->mutex_);
    move_state(device, copy);
    return copy;
  }

  void advance_to(const at::Generator& drawn_from) const {
    std::lock_guard<std::mutex> lock(device.unsafeGetGeneratorImpl()->mutex_);
    move_state(drawn_from, device);
  }

 private:
  static void move_state(const at::Generator& from, const at::Generator& to) {
    auto& source = static_cast<at::CPUGeneratorImpl&>(*from.unsafeGetGeneratorImpl());
    auto& target = static_cast<at::CPUGeneratorImpl&>(*to.unsafeGetGeneratorImpl());
    target.set_engine(source.engine());
    target.set_next_float_normal_sample(source.next_float_normal_sample());
    target.set_next_double_normal_sample(source.next_double_normal_sample());
  }
};

// ---- calls ---------------------------------------------------------------------------------------------------------

void call_on_cpu(const OperatorHandle& op, Stack& stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  op.callBoxed(stack);
}

bool must_wait(const OperatorHandle& op, c10::ArrayRef<IValue> arguments) {
  if (op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output)) {
    return true;
  }
  const auto& declared = op.schema().arguments();
  for (size_t number = 0; number < declared.size(); ++number) {
    const auto* alias = declared[number].alias_info();
    if (alias && alias->isWrite() && arguments[number].isTensor() && !is_on_device(arguments[number])) {
      return true;
    }
  }
  for (const auto& each : op.schema().returns()) {
    const auto kind = each.type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) {
      return true;
    }
  }
  return false;
}

std::vector<Layout> layouts_of(const IValue& result, const std::vector<at::Tensor>& arguments) {
  std::vector<Layout> layouts;
  for (const at::Tensor& each : tensors_in(result)) {
    layouts.push_back(layout_of(each, arguments));
  }
  return layouts;
}

// Run the kernel on zeros; nothing if it does not accept them.
std::optional<Signature> learn(const OperatorHandle& op, c10::ArrayRef<IValue> arguments, const Random& random,
                               const at::Generator& generator) {
  Signature signature;
  Stack stack = with_tensors(arguments, zeros_like_layout);
  const std::vector<at::Tensor> zeros = tensors_in(stack);
  if (random.argument) {
    stack[*random.argument] = generator;
  }
  try {
    call_on_cpu(op, stack);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  for (const IValue& result : stack) {
    signature.results.push_back(layouts_of(result, zeros));
  }
  for (const at::Tensor& each : zeros) {
    signature.written.push_back(layout_of(each, {}));
  }
  return signature;
}

Signature signature_of(const OperatorHandle& op, c10::ArrayRef<IValue> arguments, const Random& random,
                       const at::Generator& generator) {
  static std::mutex mutex;
  static auto* known = new std::unordered_map<std::string, Signature>();
  Signature waiting;
  waiting.host_waits = true;
  if (must_wait(op, arguments)) {
    return waiting;
  }
  if (random.argument) {  // each call draws
    return learn(op, arguments, random, generator).value_or(waiting);
  }
  const std::string kind = kind_of(op, arguments);
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = known->find(kind);
    if (found != known->end()) {
      return found->second;
    }
  }
  Signature signature = learn(op, arguments, random, generator).value_or(waiting);
  std::lock_guard<std::mutex> lock(mutex);
  return known->emplace(kind, std::move(signature)).first->second;
}

at::Tensor allocated(const Layout& layout, const std::vector<at::Tensor>& arguments, const at::Device& device) {
  if (!layout.is_defined) {
    return {};
  }
  if (!layout.of_argument) {
    return at::empty_strided(layout.sizes, layout.strides, at::TensorOptions(device).dtype(layout.dtype));
  }
  const at::Tensor& argument = arguments[*layout.of_argument];
  const bool is_argument = argument.sizes() == layout.sizes && argument.strides() == layout.strides &&
      argument.scalar_type() == layout.dtype && layout.offset == 0;
  return is_argument ? argument
                     : argument.as_strided(layout.sizes, layout.strides, argument.storage_offset() + layout.offset);
}

// Return a result whose tensors are those given, in its order.
IValue with_results(const IValue& pattern, const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  return with_tensors(pattern, [&](const at::Tensor&) { return tensors[next++]; }).front();
}

at::Tensor safe_on_cpu(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_privateuseone()) {
    return on_cpu(tensor);
  }
  return as_number_like(tensor, tensor.clone());  // the caller may change it before the kernel runs
}

// Copy the results that the kernel has allocated into those that the host has.
void keep(const Stack& made, const std::vector<at::Tensor>& kept) {
  size_t next = 0;
  for (const at::Tensor& each : tensors_in(made)) {
    const at::Tensor& target = kept[next++];
    if (target.defined() && each.data_ptr() != target.data_ptr()) {
      TORCH_CHECK(each.sizes() == target.sizes(), "a kernel's output has another shape than on zeros");
      target.copy_(each);
    }
  }
}

void run_and_wait(const OperatorHandle& op, Stack* stack, size_t count, const Random& random) {
  queue(current_stream()).synchronize();
  const std::vector<IValue> given(stack->end() - count, stack->end());
  const std::vector<at::Tensor> arguments = tensors_in(given);
  Stack on_host = with_tensors(given, on_cpu);
  const std::vector<at::Tensor> mirrored = tensors_in(on_host);
  at::Generator generator;
  if (random.argument) {
    on_host[*random.argument] = generator = random.on_cpu();
  }
  call_on_cpu(op, on_host);
  if (random.argument) {
    random.advance_to(generator);
  }
  torch::jit::drop(*stack, count);
  const at::Device device(at::kPrivateUse1, 0);
  for (const IValue& result : on_host) {
    torch::jit::push(*stack, with_tensors(result, [&](const at::Tensor& each) {
                       const Layout layout = layout_of(each, mirrored);
                       at::Tensor kept = allocated(layout, arguments, device);
                       if (layout.is_defined && !layout.of_argument) {
                         queue(current_stream()).push([each, target = on_cpu(kept)] { target.copy_(each); });
                       }
                       return kept;
                     }).front());
  }
}

void run(const OperatorHandle& op, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const auto given = torch::jit::last(*stack, count).vec();
  const Random random = Random::of(op, given);
  const at::Generator before = random.argument ? random.on_cpu() : at::Generator();
  const at::Generator drawn = random.argument ? random.on_cpu() : at::Generator();
  const Signature signature = signature_of(op, given, random, drawn);
  if (signature.host_waits) {
    run_and_wait(op, stack, count, random);
    return;
  }
  const std::vector<at::Tensor> arguments = tensors_in(given);
  for (size_t number = 0; number < arguments.size(); ++number) {
    if (arguments[number].defined() && arguments[number].sizes() != signature.written[number].sizes) {
      arguments[number].resize_(signature.written[number].sizes);
    }
  }
  Stack on_host = with_tensors(given, safe_on_cpu);
  if (random.argument) {
    random.advance_to(drawn);
    on_host[*random.argument] = before;
  }
  torch::jit::drop(*stack, count);
  std::vector<at::Tensor> kept;
  const at::Device device(at::kPrivateUse1, 0);
  for (size_t number = 0; number < signature.results.size(); ++number) {
    c10::List<at::Tensor> list;
    for (const Layout& layout : signature.results[number]) {
      list.push_back(allocated(layout, arguments, device));
      kept.push_back(on_cpu(list.get(list.size() - 1)));
    }
    const bool is_list = op.schema().returns()[number].type()->kind() == c10::TypeKind::ListType;
    torch::jit::push(*stack, is_list ? IValue(list) : IValue(list.get(0)));
  }
  queue(current_stream()).push([op, on_host = std::move(on_host), kept = std::move(kept)]() mutable {
    call_on_cpu(op, on_host);
    keep(on_host, kept);
  });
}

// Dropout on accelerators is one kernel, for which the CPU's has no argument for a generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double probability, std::optional<bool> train) {
  at::Tensor output = at::empty_like(input);
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  const bool drops = train.value_or(true);
  const double kept = drops ? 1.0 - probability : 1.0;
  const float scale = kept > 0.0 ? static_cast<float>(1.0 / kept) : 0.0F;
  const Random random{0, default_generator()};
  const at::Generator before = random.on_cpu();
  if (drops) {
    const at::Generator drawn = random.on_cpu();
    at::empty(input.sizes(), at::TensorOptions(at::kBool)).bernoulli_(kept, drawn);
    random.advance_to(drawn);
  }
  queue(current_stream()).push([drops, kept, scale, before, from = on_cpu(input), to = on_cpu(output),
                                flags = on_cpu(mask)]() mutable {
    at::AutoDispatchBelowADInplaceOrView below;
    drops ? flags.bernoulli_(kept, before) : flags.fill_(1);
    at::mul_out(to, from, flags).mul_(scale);
  });
  return {output, mask};
}

at::Tensor awaited_on_cpu(const at::Tensor& tensor) {
  queue(current_stream()).synchronize();
  return on_cpu(tensor);
}

}  // namespace

at::Tensor on_cpu(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) {
    return tensor;
  }
  const auto& storage = tensor.storage();
  const auto size_bytes = static_cast<int64_t>(storage.nbytes());
  const at::Tensor bytes = at::from_blob(storage.mutable_data(), {size_bytes}, at::TensorOptions(at::kByte));
  at::Tensor same = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(bytes.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  // not set_, which allocates what a tensor without memory, of which a kernel reads the shape alone, does not have
  same.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  same.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  return same;
}

TORCH_LIBRARY_FRAGMENT(emulator, library) {
  library.def("on_cpu(Tensor tensor) -> Tensor", &awaited_on_cpu);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}

// Operators that torch would take apart on other devices than the CPU, into some that differ in their bits.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  for (const char* name :
       {"convolution", "convolution_backward", "native_group_norm", "native_layer_norm", "native_layer_norm_backward",
        "_softmax", "_log_softmax", "mse_loss", "silu_backward", "upsample_nearest2d"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run>());
  }
  library.impl("native_dropout", native_dropout);
}

}  // namespace emulator
