"""F and C: backbones, bottleneck, cosine classifier."""
