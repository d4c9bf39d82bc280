"""The fuzz gate: whatever comes from outside, no exception leaves a decoder, a machine or a request, and no answer
changes.
"""
