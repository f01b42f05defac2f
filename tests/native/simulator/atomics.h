// Relaxed atomics. Fibers are switched only where they wait, so a load and a store are one step to every other thread;
// both are marked as atomic for the thread sanitizer, and order nothing else.
#pragma once

namespace simulator {

template <class T, class Change>
T update(T* address, Change change) {
  T old;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  T now = change(old);
  __atomic_store(address, &now, __ATOMIC_RELAXED);
  return old;
}

template <class T>
struct Same {
  using type = T;
};
// A parameter that is converted to the type that the address has.
template <class T>
using Value = typename Same<T>::type;

}  // namespace simulator

template <class T>
T atomicAdd(T* address, simulator::Value<T> value) {
  return simulator::update(address, [&](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicSub(T* address, simulator::Value<T> value) {
  return simulator::update(address, [&](T old) { return static_cast<T>(old - value); });
}
template <class T>
T atomicMin(T* address, simulator::Value<T> value) {
  return simulator::update(address, [&](T old) { return value < old ? value : old; });
}
template <class T>
T atomicMax(T* address, simulator::Value<T> value) {
  return simulator::update(address, [&](T old) { return old < value ? value : old; });
}
template <class T>
T atomicAnd(T* address, simulator::Value<T> value) {
  return simulator::update(address, [&](T old) { return old & value; });
}
template <class T>
T atomicOr(T* address, simulator::Value<T> value) {
  return simulator::update(address, [&](T old) { return old | value; });
}
template <class T>
T atomicXor(T* address, simulator::Value<T> value) {
  return simulator::update(address, [&](T old) { return old ^ value; });
}
template <class T>
T atomicExch(T* address, simulator::Value<T> value) {
  return simulator::update(address, [&](T) { return value; });
}
template <class T>
T atomicCAS(T* address, simulator::Value<T> expected, simulator::Value<T> value) {
  return simulator::update(address, [&](T old) { return old == expected ? value : old; });
}
