"""The atlas: the number of tokens above which each attention is faster, or smaller, than fused softmax attention."""
