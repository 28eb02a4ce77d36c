"""What benchmarks/gpu_report.sh measures on a machine with a GPU, part by part, and the page that it writes."""
