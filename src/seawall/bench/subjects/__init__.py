"""What is measured and what it is compared with: logs, nodes, pods, bare servers, other processes."""
