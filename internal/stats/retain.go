package stats

import (
	"context"
	"fmt"
)

// retainBatch is how many requests are deleted at a time, so that new ones do not
// wait long for the writer.
const retainBatch = 2000

// retain deletes some of what is too old or too much, and reports whether more
// may be.
func (s *Store) retain(ctx context.Context) (more bool) {
	db := s.writable()
	if db == nil {
		return false
	}
	more, err := db.retain(ctx, s.o)
	if err != nil {
		s.fail(ctx, err)
	}
	return more
}

func (db *database) retain(ctx context.Context, o Options) (more bool, err error) {
	now := o.Now()
	for _, r := range resolutions {
		keep := r.keep
		if keep == 0 {
			keep = o.KeepTotals
		}
		before := now.Add(-keep).UnixMilli()
		for dim := ofAll; dim <= ofClient; dim++ {
			if _, err := db.write.ExecContext(ctx, fmt.Sprintf(`DELETE FROM sums_%s WHERE dimension = ? AND step < ?`, r.name), int(dim), before); err != nil {
				return false, err
			}
		}
		if _, err := db.write.ExecContext(ctx, fmt.Sprintf(`DELETE FROM samples_%s WHERE step < ?`, r.name), before); err != nil {
			return false, err
		}
	}
	for table, keep := range map[string]int64{
		"shifts": now.Add(-o.Keep).UnixMilli(),
		"causes": now.Add(-o.KeepTotals).UnixMilli(),
	} {
		if _, err := db.write.ExecContext(ctx, fmt.Sprintf(`DELETE FROM %s WHERE step < ?`, table), keep); err != nil {
			return false, err
		}
	}
	gone, err := db.delete(ctx, `DELETE FROM requests WHERE id IN (SELECT id FROM requests WHERE ended < ? ORDER BY ended LIMIT ?)`,
		now.Add(-o.Keep).UnixMilli(), retainBatch)
	if err != nil || gone == retainBatch {
		return true, err
	}
	used, err := db.used(ctx)
	if err != nil || used <= o.MaxBytes {
		return false, err
	}
	gone, err = db.delete(ctx, `DELETE FROM requests WHERE id IN (SELECT id FROM requests ORDER BY id LIMIT ?)`, retainBatch)
	return gone == retainBatch, err
}

// delete deletes rows, and gives the room back to the disk.
func (db *database) delete(ctx context.Context, query string, args ...any) (rows int64, err error) {
	res, err := db.write.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	if rows, err = res.RowsAffected(); err != nil || rows == 0 {
		return rows, err
	}
	_, err = db.write.ExecContext(ctx, `PRAGMA incremental_vacuum`)
	return rows, err
}

// used is the size of the file less what is free within.
func (db *database) used(ctx context.Context) (bytes int64, err error) {
	err = db.write.QueryRowContext(ctx, `SELECT (page_count - freelist_count) * page_size
		FROM pragma_page_count, pragma_freelist_count, pragma_page_size`).Scan(&bytes)
	return bytes, err
}
