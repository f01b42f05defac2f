"""The simulated transmitters: their faults can be measured in the received signal."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from lps.data.base import Examples, random
from lps.data.synthetic_rf import (
    RATE,
    SAMPLES,
    Signal,
    Transmitter,
    generate,
    payloads,
    receive,
    simulate,
)

PERFECT = Transmitter(
    gain=1.0, skew=0.0, leakage=0j, offset=0.0, linewidth=0.0, saturation=1e6, smoothness=2.0, conversion=0.0
)


@cache
def whole_set() -> tuple[Examples, Examples]:
    return generate(0)


def test_the_set_has_the_papers_sizes_and_depends_on_the_seed_alone() -> None:
    train, test = whole_set()
    assert train.inputs.shape == (7050, 2, 1024)
    assert test.inputs.shape == (2750, 2, 1024)
    assert train.inputs.dtype == torch.uint8
    assert train.labels.bincount().tolist() == [141] * 50
    assert test.labels.bincount().tolist() == [55] * 50
    again, other = simulate(0, 7), simulate(1, 7)
    assert np.array_equal(train.inputs[7 * 141 : 8 * 141], again[:141])
    assert np.array_equal(test.inputs[7 * 55 : 8 * 55], again[141:])
    assert not np.array_equal(again, other)


def test_no_window_comes_twice_and_few_samples_are_clipped() -> None:
    train, test = whole_set()
    both = torch.cat([train.inputs, test.inputs])[:, 0, :64]
    assert len(np.unique(both.numpy(), axis=0)) == 9800
    clipped = ((train.inputs == 0) | (train.inputs == 255)).float().mean()
    assert clipped < 1e-3


def test_the_payload_is_the_same_kind_for_all() -> None:
    payload = payloads(200, random(0, "test"))
    assert payload.shape == (200, SAMPLES)
    assert abs(np.mean(np.abs(payload) ** 2) - 1) < 0.02
    assert abs(payload.mean()) < 0.05
    peaks = np.abs(payload).max(1)
    np.testing.assert_allclose(peaks, np.sqrt(4 / 3), rtol=1e-5)  # the symbols themselves


def test_a_transmitter_without_faults_sends_the_payload() -> None:
    payload = payloads(10, random(0, "test"))
    sent = PERFECT.send(payload, np.random.default_rng(0))
    # Only the drift of up to 500 Hz is left, at most 1.6 radians in a window.
    np.testing.assert_allclose(np.abs(sent), np.abs(payload), atol=1e-5)
    assert np.abs(np.angle(sent * payload.conj())).max() <= 2 * np.pi * 500 * SAMPLES / RATE + 1e-3


def frequency(signal: Signal) -> float:
    """The frequency offset in Hz, from the phase difference of successive samples."""
    return float(np.angle(np.mean(signal[:, 1:] * signal[:, :-1].conj())) * RATE / (2 * np.pi))


def faulty(**faults: float | complex) -> tuple[Signal, Signal]:
    """A payload, and the signal of a transmitter with only these faults."""
    payload = payloads(200, random(0, "test"))
    values = {**vars(PERFECT), **faults}
    return payload, Transmitter(**values).send(payload, np.random.default_rng(0))


def test_every_fault_does_what_its_name_says() -> None:
    _, sent = faulty(offset=20e3)
    assert abs(frequency(sent) - 20e3) < 2e3
    payload, sent = faulty(saturation=1.0, smoothness=2.0)
    assert np.abs(payload).max() > 1.15
    assert np.abs(sent).max() < 0.9
    weak = np.abs(payload) < 0.2
    np.testing.assert_allclose(np.abs(sent)[weak], np.abs(payload)[weak], rtol=1e-3)
    _, sent = faulty(linewidth=100.0)
    _, clean = faulty()
    walk = np.angle(sent[:, -1] * clean[:, -1].conj())
    assert abs(np.std(walk) - np.sqrt(2 * np.pi * 100 * SAMPLES / RATE)) < 0.1
    # With the drift taken out again, the mean and the square of the samples show the next three.
    payload, clean = faulty()
    still = (clean / payload).conj()
    _, sent = faulty(leakage=0.2 + 0j)
    np.testing.assert_allclose(np.mean(sent * still - payload), 0.2, atol=1e-4)
    _, sent = faulty(gain=1.2)
    assert abs(np.mean((sent * still) ** 2) - np.mean(payload**2) - (1.2 - 1 / 1.2) / 2) < 0.01
    _, sent = faulty(skew=0.1)
    assert abs(np.mean((sent * still) ** 2) - np.mean(payload**2) + np.sin(0.1) * 1j) < 0.03
    payload, sent = faulty(conversion=0.2, saturation=1.0)
    _, straight = faulty(saturation=1.0)
    turned = np.angle(sent * straight.conj())
    level = np.abs(payload) ** 2
    np.testing.assert_allclose(turned, 0.2 * level / (1 + level), atol=1e-4)


def test_the_receiver_gives_bytes_of_one_strength() -> None:
    sent = PERFECT.send(payloads(50, random(0, "test")), np.random.default_rng(0))
    received = receive(10 * sent, np.random.default_rng(1))
    assert received.dtype == np.uint8
    strength = np.sqrt(np.mean((received - 127.5) ** 2, axis=(1, 2)) * 2)
    np.testing.assert_allclose(strength, 40, rtol=0.01)


def test_transmitters_can_be_told_apart_by_their_frequency() -> None:
    """The offset of each transmitter, measured through noise and channels, is the one it was drawn with."""
    train, _ = whole_set()
    signal = train.inputs.numpy().astype(np.float32) - 127.5
    windows = (signal[:, 0] + 1j * signal[:, 1]).reshape(50, 141, SAMPLES)
    measured = [frequency(part) for part in windows]
    drawn = [Transmitter.draw(random(0, "transmitter", number)).offset for number in range(50)]
    # Random symbols change the phase too: the measurement deviates by 0.4 kHz, of a range of 70 kHz.
    np.testing.assert_allclose(measured, drawn, atol=2e3)
