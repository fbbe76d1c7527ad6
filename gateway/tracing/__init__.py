"""Traces by OpenTelemetry, loaded where the configuration asks for them. The only place that knows its libraries."""
