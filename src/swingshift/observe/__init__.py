"""What a run writes and shows: metrics, samples, the timeline, the console, the summary and the picture."""
