"""The atlas: from how many tokens on each attention is faster, or smaller, than fused softmax attention."""
