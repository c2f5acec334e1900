"""The server beside VictoriaMetrics and Prometheus on the same recorded readings."""
