"""Speed and memory of models, attentions and operators: `python -m benchmarks --help`."""
