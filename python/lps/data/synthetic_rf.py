"""synthetic-rf: 50 simulated transmitters of one model that differ only in the faults of their hardware.

All send the same kind of signal, random QPSK symbols, 125,000 per second with smooth transitions, sampled at 2 MS/s. A
transmitter differs from the others only in its faults, drawn once per transmitter:

=============================  =======================================================================================
gain imbalance of I and Q      -2 to 2 dB
phase imbalance of I and Q     -10 to 10 degrees
carrier leakage (DC offset)    15 to 35 dB below the signal, any phase
carrier frequency offset       -35 to 35 kHz (40 ppm of 868 MHz), and in each window up to 500 Hz of drift either way
phase noise (linewidth)        1 to 100 Hz, evenly on a logarithmic scale; a random walk of the phase
power amplifier (Rapp)         saturates at 0 to 6 dB above the signal's mean power; smoothness 1 to 3
its AM/PM conversion           -15 to 15 degrees of phase at full saturation
=============================  =======================================================================================

Each window has its own channel: a first path of any phase and three later ones, 0.5, 1 and 1.5 us after
it, with Rayleigh gains of -9, -12 and -15 dB on average; then noise 20 to 35 dB below the signal. The receiver scales
each window to a root mean square of 40 steps around 127.5 and rounds to 8 bits.

Simulated data say nothing about real radios; the set is for trying the method on a stream of this shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lps.data.base import Examples, Stream, random
from lps.data.benchmark import Benchmark, Request
from lps.data.files import Bytes
from lps.data.rf import PRESETS, TEST_WINDOWS, TRAIN_WINDOWS, TRANSMITTERS, partition_stream, raw

Signal = NDArray[np.complex64]  # [windows, samples]

SAMPLES = 1024
RATE = 2e6  # samples per second
SYMBOL = 16  # samples
PATHS = 10 ** (np.array([-9.0, -12.0, -15.0]) / 20)


@dataclass(frozen=True)
class Transmitter:
    """The faults of one transmitter."""

    gain: float  # amplitude ratio of I to Q
    skew: float  # radians by which Q is not at a right angle to I
    leakage: complex  # relative to the signal's root mean square
    offset: float  # Hz
    linewidth: float  # Hz
    saturation: float  # amplitude relative to the signal's root mean square
    smoothness: float
    conversion: float  # radians at full saturation

    @classmethod
    def draw(cls, generator: np.random.Generator) -> Transmitter:
        """Draw the faults of a new transmitter."""
        uniform = generator.uniform
        return cls(
            gain=10 ** (uniform(-2, 2) / 20),
            skew=np.deg2rad(uniform(-10, 10)),
            leakage=10 ** (uniform(-35, -15) / 20) * np.exp(2j * np.pi * uniform()),
            offset=uniform(-35e3, 35e3),
            linewidth=10 ** uniform(0, 2),
            saturation=10 ** (uniform(0, 6) / 20),
            smoothness=uniform(1, 3),
            conversion=np.deg2rad(uniform(-15, 15)),
        )

    def send(self, payload: Signal, generator: np.random.Generator) -> Signal:
        """What leaves the antenna for a payload of mean power 1."""
        windows, samples = payload.shape
        i, q = np.sqrt(self.gain) * payload.real, payload.imag / np.sqrt(self.gain)
        mixed = (i - np.sin(self.skew) * q) + 1j * np.cos(self.skew) * q + self.leakage
        drift = generator.uniform(-500, 500, (windows, 1))
        walk = generator.standard_normal((windows, samples), np.float32) * np.sqrt(2 * np.pi * self.linewidth / RATE)
        phase = 2 * np.pi * (self.offset + drift) / RATE * np.arange(samples) + walk.cumsum(1)
        level = np.abs(mixed) / self.saturation
        amplitude = (1 + level ** (2 * self.smoothness)) ** (-0.5 / self.smoothness)
        phase += self.conversion * level**2 / (1 + level**2)
        sent: Signal = (mixed * amplitude * np.exp(1j * phase)).astype(np.complex64)
        return sent


def payloads(windows: int, generator: np.random.Generator) -> Signal:
    """Random QPSK, each symbol fading into the next, cut at a random place, of mean power 1."""
    bits = generator.integers(0, 2, (2, windows, SAMPLES // SYMBOL + 2), np.int8)
    symbols = ((2 * bits[0] - 1) + 1j * (2 * bits[1] - 1)).astype(np.complex64)
    time = generator.integers(0, SYMBOL, (windows, 1)) + np.arange(SAMPLES)
    before = np.take_along_axis(symbols, time // SYMBOL, 1)
    after = np.take_along_axis(symbols, time // SYMBOL + 1, 1)
    fade = np.sin(np.pi / 2 * (time % SYMBOL) / SYMBOL).astype(np.float32) ** 2
    # A symbol has power 2; fading makes 3/4 of it on average.
    mixed: Signal = ((1 - fade) * before + fade * after) / np.float32(np.sqrt(1.5))
    return mixed


def receive(signal: Signal, generator: np.random.Generator) -> Bytes:
    """What an 8-bit receiver makes of it behind a channel and noise: uint8 [windows, 2, samples]."""
    windows, samples = signal.shape

    def normal(*shape: int) -> Signal:
        parts = generator.standard_normal((2, *shape), np.float32) * np.float32(np.sqrt(0.5))
        noise: Signal = (parts[0] + 1j * parts[1]).astype(np.complex64)
        return noise

    result = signal * np.exp(2j * np.pi * generator.random((windows, 1)))
    for delay, gain in enumerate(normal(len(PATHS), windows, 1) * PATHS[:, None, None], start=1):
        result[:, delay:] += gain * signal[:, :-delay]
    power = np.mean(np.abs(result) ** 2, axis=1, keepdims=True)
    depth = 10 ** (-generator.uniform(20, 35, (windows, 1)) / 20)
    result += np.sqrt(power) * depth * normal(windows, samples)
    result *= 40 / np.sqrt(np.mean(np.abs(result) ** 2, axis=1, keepdims=True))
    steps = np.stack([result.real, result.imag], 1) + 127.5
    return np.clip(np.rint(steps), 0, 255).astype(np.uint8)


def simulate(seed: int, number: int) -> Bytes:
    """All windows of one transmitter, those for training first: uint8 [196, 2, 1024]."""
    transmitter = Transmitter.draw(random(seed, "transmitter", number))
    generator = random(seed, "windows", number)
    return receive(transmitter.send(payloads(TRAIN_WINDOWS + TEST_WINDOWS, generator), generator), generator)


def generate(seed: int) -> tuple[Examples, Examples]:
    """Simulate the training and test windows of all transmitters."""
    windows = torch.from_numpy(np.stack([simulate(seed, number) for number in range(TRANSMITTERS)]))
    labels = torch.arange(TRANSMITTERS, dtype=torch.uint8)
    train, test = (
        Examples(part.flatten(0, 1), labels.repeat_interleave(part.shape[1]))
        for part in (windows[:, :TRAIN_WINDOWS], windows[:, TRAIN_WINDOWS:])
    )
    return train, test


def build(request: Request) -> Stream:
    """Build the stream; it needs no files."""
    return partition_stream("synthetic-rf", *generate(request.seed), request)


BENCHMARK = Benchmark(build, raw, tasks=5, most=5, presets=PRESETS)
