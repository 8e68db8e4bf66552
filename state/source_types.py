"""Groups of the types of MySQL and MariaDB that readers and sinks both treat in one way."""

SPATIAL_TYPES = frozenset(
    {
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geomcollection",
        "geometrycollection",
    }
)
"""Their values are bytes: SRID and WKB, the server's own form."""
