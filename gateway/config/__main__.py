"""`python -m gateway.config`, in the root of the repository: writes the parts of `docs/` that the models say."""

from gateway.config.reference import GUIDE, SCHEMA, filled, schema_text

if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
    GUIDE.write_text(filled(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
