package ticket

import (
	"net/http"
)

const (
	// Header is the HTTP header with a signed ticket.
	Header = "Relock-Ticket"
	// MetadataKey is the key of a signed ticket in the metadata of gRPC.
	MetadataKey = "relock-ticket"
)

// Set puts a signed ticket into the header of a request.
func Set(h http.Header, s Signed) { h.Set(Header, s.Text()) }

// From returns the signed ticket in the header of a request. Errors: [ErrMissing]; [ErrSignature]
// for more than one.
func From(h http.Header) (Signed, error) { return only(h.Values(Header)) }

// ToMetadata puts a signed ticket into metadata of gRPC: a metadata.MD is such a map.
//
//	md := metadata.MD{}
//	ticket.ToMetadata(md, signed)
//	ctx = metadata.NewOutgoingContext(ctx, md)
func ToMetadata(md map[string][]string, s Signed) { md[MetadataKey] = []string{s.Text()} }

// FromMetadata returns the signed ticket in metadata of gRPC. Errors: [ErrMissing]; [ErrSignature]
// for more than one.
//
//	md, _ := metadata.FromIncomingContext(ctx)
//	signed, err := ticket.FromMetadata(md)
func FromMetadata(md map[string][]string) (Signed, error) { return only(md[MetadataKey]) }

// only returns the ticket in values, if there is one.
func only(values []string) (Signed, error) {
	switch {
	case len(values) == 0 || len(values) == 1 && values[0] == "":
		return "", ErrMissing
	case len(values) > 1:
		return "", because(ErrSignature, "there is more than one")
	}
	return Signed(values[0]), nil
}
