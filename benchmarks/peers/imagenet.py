"""The arrays that every loader is to deliver: 224 x 224, normalised with the statistics of ImageNet."""

from __future__ import annotations

import numpy as np

SIZE = 224
# In units of 1, and as constants for `(pixels - PIXEL_MEAN) * PIXEL_SCALE` of shape `(3, 1, 1)`, pixels from 0 to 255.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
PIXEL_MEAN = (255 * np.array(MEAN, np.float32)).reshape(3, 1, 1)
PIXEL_SCALE = (1 / (255 * np.array(STD, np.float32))).reshape(3, 1, 1)
