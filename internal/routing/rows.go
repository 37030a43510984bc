package routing

// row is the number of a conversation in the table; 0 is none.
type row uint32

// rows stores conversations in chunks without pointers in them, so that a
// million of them cost the garbage collector nothing, none is ever copied, and
// a *conversation stays valid while it is in the table.
type rows struct {
	chunks [][]conversation
	used   row   // the highest row handed out so far
	free   []row // given back
}

const chunkSize = 1 << 10

func (s *rows) at(r row) *conversation { return &s.chunks[r/chunkSize][r%chunkSize] }

// take returns an empty conversation.
func (s *rows) take() *conversation {
	if n := len(s.free); n > 0 {
		v := s.at(s.free[n-1])
		s.free = s.free[:n-1]
		return v
	}
	s.used++
	if int(s.used/chunkSize) >= len(s.chunks) {
		s.chunks = append(s.chunks, make([]conversation, chunkSize))
	}
	v := s.at(s.used)
	v.row = s.used
	return v
}

// give takes a conversation back.
func (s *rows) give(v *conversation) {
	*v = conversation{row: v.row}
	s.free = append(s.free, v.row)
}

// listName names one of the table's lists.
type listName uint8

const (
	unlisted listName = iota
	recent
	idle
)

// list is a doubly linked list through the rows, longest unseen in front.
type list struct{ front, back row }

func (t *table) list(name listName) *list { return &t.lists[name-1] }

// front is the first of a list, nil when it is empty.
func (t *table) front(name listName) *conversation {
	if r := t.list(name).front; r != 0 {
		return t.at(r)
	}
	return nil
}

func (t *table) pushBack(name listName, v *conversation) {
	l := t.list(name)
	v.in, v.prev, v.next = name, l.back, 0
	if l.back == 0 {
		l.front = v.row
	} else {
		t.at(l.back).next = v.row
	}
	l.back = v.row
}

func (t *table) pushFront(name listName, v *conversation) {
	l := t.list(name)
	v.in, v.prev, v.next = name, 0, l.front
	if l.front == 0 {
		l.back = v.row
	} else {
		t.at(l.front).prev = v.row
	}
	l.front = v.row
}

// unlink takes v out of the list that it is in, if any.
func (t *table) unlink(v *conversation) {
	if v.in == unlisted {
		return
	}
	l := t.list(v.in)
	if v.prev == 0 {
		l.front = v.next
	} else {
		t.at(v.prev).next = v.next
	}
	if v.next == 0 {
		l.back = v.prev
	} else {
		t.at(v.next).prev = v.prev
	}
	v.in, v.prev, v.next = unlisted, 0, 0
}
