"""Tensors that are made on the CPU and used on the device."""

import torch
from torch import Tensor


def send_to(device: torch.device, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the tensor on the device. Copies to a CUDA device do not wait for what the device still has to do.

    CUDA has read pageable memory before the call returns, so the tensor may be freed or changed at once. MPS has not.
    """
    return tensor.to(device, dtype, non_blocking=device.type == "cuda")
