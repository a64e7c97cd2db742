"""Rotary angles for a step's positions, with the frequency scalings of long-context models. Knows no attention."""

import math

import torch
from torch import Tensor

from radixlm.config.card import RopeScaling


class Rotary:
    """Makes the cosine and sine tables that `kernels.rotary.rotary` takes; one instance serves all layers."""

    def __init__(self, head_dim: int, theta: float, scaling: RopeScaling | None, device: torch.device) -> None:
        frequencies = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
        self._amplitude = 1.0
        if scaling is not None:
            frequencies, self._amplitude = _scale(frequencies, theta, head_dim, scaling)
        self._frequencies = frequencies.to(device)

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions: int64 [T]. Returns cos and sin, float32 [T, 1, head_dim]; the first half of sin is negated."""
        angles = (positions[:, None].float() * self._frequencies)[:, None]
        cos, sin = angles.cos(), angles.sin()
        if self._amplitude != 1.0:
            cos, sin = cos * self._amplitude, sin * self._amplitude
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def _scale(frequencies: Tensor, theta: float, head_dim: int, scaling: RopeScaling) -> tuple[Tensor, float]:
    """The changed frequencies, and a factor on cosine and sine."""
    if scaling.kind == "linear":
        return frequencies / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(frequencies, scaling), 1.0
    return _yarn(frequencies, theta, head_dim, scaling)


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's rule: long wavelengths are stretched, short ones kept, those between blended (arXiv 2407.21783)."""
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_position / wavelengths
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blended = (1 - keep) * frequencies / scaling.factor + keep * frequencies
    result = torch.where(turns < scaling.low_freq_factor, frequencies / scaling.factor, blended)
    return torch.where(turns > scaling.high_freq_factor, frequencies, result)


def _yarn(frequencies: Tensor, theta: float, head_dim: int, scaling: RopeScaling) -> tuple[Tensor, float]:
    """YaRN: a linear ramp over the dimensions between kept and stretched frequencies (arXiv 2309.00071)."""

    def dimension_of(turns: float) -> float:
        return head_dim * math.log(scaling.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dimension_of(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension_of(scaling.beta_slow)), head_dim - 1)
    width = high - low if high != low else 0.001
    stretch = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    amplitude = scaling.attention_factor
    if amplitude is None:
        amplitude = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    return frequencies / scaling.factor * stretch + frequencies * (1 - stretch), amplitude
