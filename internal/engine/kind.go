package engine

import "context"

// kind is what differs between engines. Each has a file of its own; the rest of
// the package asks here and names none.
type kind struct {
	name   string // as in Info.Kind
	title  string // as its makers write it
	owner  string // what its model list gives as "owned_by"
	prefix string // of its metrics
	// health is the path that says cheaply whether it can serve.
	health string
	// metric knows one by its name.
	metric func(name []byte) metric
	// label takes a label of a series. It may change which metric the series is.
	label func(s *series, label, value []byte)
	// about asks what neither the model list nor the metrics page tells. That the
	// engine does not know a question is no error; that it did not answer is.
	about func(ctx context.Context, p prober, i *Info) error
	// ranks are the generation routes of an engine that takes a rank, with what
	// is known of each.
	ranks []rankPath
}

// kinds are the engines that we know.
var kinds = [...]*kind{&vllm, &sglang, &llamacpp}

// unknownKind is an engine of which only the API is known. Its owner may have
// said how many ranks it has; then it is taken for the first engine that had
// some.
var unknownKind = kind{
	name: "unknown", title: "unknown engine", health: vllm.health, about: vllm.about, ranks: vllm.ranks,
}

// kindOf is the kind of this name.
func kindOf(name string) *kind {
	for _, k := range kinds {
		if k.name == name {
			return k
		}
	}
	return &unknownKind
}

// Title is a kind's name as its makers write it.
func Title(kind string) string { return kindOf(kind).title }

// kindOwning is the kind whose model list has this owner.
func kindOwning(owner string) *kind {
	for _, k := range kinds {
		if k.owner == owner {
			return k
		}
	}
	return &unknownKind
}

// measures tells whether a line of a metrics page is of this kind.
func (k *kind) measures(line []byte) bool {
	return len(line) >= len(k.prefix) && string(line[:len(k.prefix)]) == k.prefix
}
