"""Tests of edgespec, cloud_gateway and tools, in the order of their folders."""
