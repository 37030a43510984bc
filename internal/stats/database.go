package stats

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

//go:embed migrations/*.sql
var migrations embed.FS

// schemaVersion is that of the newest migration.
const schemaVersion = 2

// database is an open file. The writer alone uses write, words and the prepared
// statements; read serves everybody.
type database struct {
	write, read *sql.DB
	words       map[string]int64 // those of the file, all committed
	insert      statements
}

// openDatabase opens a file, or makes it, and brings it to the present schema.
func openDatabase(ctx context.Context, path string) (db *database, err error) {
	db = &database{}
	defer func() {
		if err != nil {
			db.close()
			db = nil
		}
	}()
	memory := path == MemoryOnly
	if !memory {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return db, err
		}
	}
	if db.write, err = sql.Open("sqlite", dsn(path, false)); err != nil {
		return db, err
	}
	// One writer; and what is in memory lives as long as its only connection.
	db.write.SetMaxOpenConns(1)
	db.write.SetConnMaxLifetime(0)
	if err = migrate(ctx, db.write); err != nil {
		return db, err
	}
	if db.read = db.write; !memory {
		if db.read, err = sql.Open("sqlite", dsn(path, true)); err != nil {
			return db, err
		}
		db.read.SetMaxOpenConns(4)
	}
	if db.words, err = readWords(ctx, db.write); err != nil {
		return db, err
	}
	db.insert, err = prepare(ctx, db.write)
	return db, err
}

func (db *database) close() {
	if db.read != nil && db.read != db.write {
		db.read.Close()
	}
	if db.write != nil {
		db.write.Close()
	}
}

// dsn names a database file for the driver.
func dsn(path string, readOnly bool) string {
	if path == MemoryOnly {
		return path
	}
	q := url.Values{}
	q.Set("_txlock", "immediate")
	// A kill loses no transaction that was committed; a power cut may lose the last.
	q["_pragma"] = []string{"busy_timeout(2000)", "auto_vacuum(incremental)", "journal_mode(wal)", "synchronous(normal)"}
	if readOnly {
		q.Set("mode", "ro")
		q["_pragma"] = []string{"busy_timeout(2000)"}
		q.Del("_txlock")
	}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String()
}

var (
	// errNewer is a file that a later release has written.
	errNewer = errors.New("it was written by a newer release")
	// errDamaged is content that nobody can have written.
	errDamaged = errors.New("it is damaged")
)

// migrate brings a file to the present schema.
func migrate(ctx context.Context, db *sql.DB) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	is, want, err := provider.GetVersions(ctx)
	if err != nil {
		return err
	}
	if is > want {
		return fmt.Errorf("%w (schema %d, this release knows %d)", errNewer, is, want)
	}
	_, err = provider.Up(ctx)
	return err
}

// ailment is what an error says of the file.
type ailment uint8

const (
	waiting ailment = iota // it goes away by itself: no room, a lock
	lost                   // the file must be opened anew: it was deleted or moved, its disk failed
	damaged                // it is not one of ours, or broken: no other try will help
)

func diagnose(err error) ailment {
	if errors.Is(err, errNewer) || errors.Is(err, errDamaged) {
		return damaged
	}
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return lost
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT:
		return waiting
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH,
		sqlite3.SQLITE_ABORT, sqlite3.SQLITE_PROTOCOL:
		return lost
	}
	// Corrupt, not a database, or without the tables that its version promises.
	return damaged
}

// full reports whether an error is for want of room.
func full(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_FULL
}

// moveAside renames a database file and what belongs to it.
func moveAside(path, aside string) error {
	if err := os.Rename(path, aside); err != nil {
		return err
	}
	for _, part := range []string{"-wal", "-shm"} {
		if err := os.Rename(path+part, aside+part); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
