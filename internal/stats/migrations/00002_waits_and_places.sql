-- +goose Up

ALTER TABLE requests ADD COLUMN waited INTEGER; -- microseconds, NULL for not at all
ALTER TABLE requests ADD COLUMN change_offset INTEGER; -- in the part or message that changed
ALTER TABLE requests ADD COLUMN change_within INTEGER;

-- Sketches, of those that waited.
ALTER TABLE sums_10s ADD COLUMN waited BLOB;
ALTER TABLE sums_1m ADD COLUMN waited BLOB;
ALTER TABLE sums_10m ADD COLUMN waited BLOB;
ALTER TABLE sums_1h ADD COLUMN waited BLOB;
ALTER TABLE sums_1d ADD COLUMN waited BLOB;
