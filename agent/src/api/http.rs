//! The part of HTTP/1.1 that the agent needs: the head of a request, a response with a length, a chunked response.

use std::io::{self, Read, Write};
use std::time::Duration;

/// The longest head of a request, in bytes.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
/// The longest body, in bytes: 64 KiB.
pub const BODY_BYTES_MAX: usize = 64 << 10;
/// The most header lines.
const HEADERS_MAX: usize = 32;
/// The largest chunk of an answer, in bytes.
const CHUNK_BYTES: usize = 16 << 10;
/// The longest silence of a peer: 10 s.
pub const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HttpRequest {
    pub method: String,
    /// As sent, percent-encoded, without the query.
    pub path: String,
    /// Names and values of the query, decoded.
    pub query: Vec<(String, String)>,
    pub token: Option<String>,
    /// Whether the connection stays open.
    pub keep: bool,
    pub body: Vec<u8>,
}

impl HttpRequest {
    /// The first value of this name.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// All values of this name.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.query.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Why no request could be read.
#[derive(Debug)]
pub enum RequestError {
    /// The peer has disconnected, or was silent for too long.
    Disconnected,
    /// The status of the response, and the reason.
    Refused(u16, String),
}

impl From<io::Error> for RequestError {
    fn from(_: io::Error) -> Self {
        RequestError::Disconnected
    }
}

/// Decodes `%2F`; in a query `+` stands for a space too.
pub fn decode(text: &str, query: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| byte.and_then(|byte| (byte as char).to_digit(16));
                (digit(rest.next())? * 16 + digit(rest.next())?) as u8
            }
            b'+' if query => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Reads one request; `buffer` keeps the bytes after it.
pub fn read(stream: &mut impl Read, buffer: &mut Vec<u8>) -> Result<HttpRequest, RequestError> {
    loop {
        if let Some((mut request, head, body)) = parse(buffer)? {
            buffer.drain(..head);
            request.body = read_body(stream, buffer, body)?;
            return Ok(request);
        }
        if buffer.len() >= HEAD_BYTES_MAX {
            return Err(RequestError::Refused(
                431,
                format!("the head of the request is longer than {HEAD_BYTES_MAX} bytes"),
            ));
        }
        let mut part = [0; 1024];
        match stream.read(&mut part)? {
            0 => return Err(RequestError::Disconnected),
            count => buffer.extend_from_slice(&part[..count]),
        }
    }
}

/// The given number of bytes, first from the buffer, then from the stream.
fn read_body(stream: &mut impl Read, buffer: &mut Vec<u8>, bytes: usize) -> Result<Vec<u8>, RequestError> {
    let mut body: Vec<u8> = buffer.drain(..bytes.min(buffer.len())).collect();
    let missing = (bytes - body.len()) as u64;
    stream.take(missing).read_to_end(&mut body)?;
    if body.len() < bytes { Err(RequestError::Disconnected) } else { Ok(body) }
}

fn parse(buffer: &[u8]) -> Result<Option<(HttpRequest, usize, usize)>, RequestError> {
    let refuse = |status, why: &str| Err(RequestError::Refused(status, why.to_owned()));
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut headers);
    let length = match head.parse(buffer) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return refuse(431, "more than 32 header lines"),
        Err(error) => return refuse(400, &format!("not an HTTP request: {error}")),
    };
    let (target, method) = (head.path.unwrap_or_default(), head.method.unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = HttpRequest {
        method: method.to_owned(),
        path: path.to_owned(),
        keep: head.version == Some(1),
        ..HttpRequest::default()
    };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        match (decode(key, true), decode(value, true)) {
            (Some(key), Some(value)) => request.query.push((key, value)),
            _ => return refuse(400, &format!("the query's {pair:?} is not percent-encoded UTF-8")),
        }
    }
    let mut body = 0;
    for header in head.headers.iter() {
        let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
        match header.name.to_ascii_lowercase().as_str() {
            "authorization" => request.token = value.strip_prefix("Bearer ").map(|token| token.trim().to_owned()),
            "connection" => request.keep = request.keep && !value.eq_ignore_ascii_case("close"),
            "content-length" => match value.parse() {
                Ok(length) if length <= BODY_BYTES_MAX => body = length,
                _ => return refuse(413, "a request's body is at most 64 KiB"),
            },
            "transfer-encoding" => return refuse(411, "a request's body needs a content-length"),
            _ => {}
        }
    }
    Ok(Some((request, length, body)))
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Error",
    }
}

/// Writes a complete JSON response.
pub fn answer(stream: &mut impl Write, status: u16, body: &[u8], keep: bool) -> io::Result<()> {
    let connection = if keep { "keep-alive" } else { "close" };
    let extra = if status == 401 { "www-authenticate: Bearer\r\n" } else { "" };
    let mut bytes = format!(
        "HTTP/1.1 {status} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: {connection}\r\n{extra}\r\n",
        reason(status),
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    stream.write_all(&bytes)?;
    stream.flush()
}

/// A response whose length is not known in advance.
pub struct ChunkedResponse<'a, W: Write> {
    stream: &'a mut W,
    part: Vec<u8>,
}

impl<'a, W: Write> ChunkedResponse<'a, W> {
    pub fn begin(stream: &'a mut W, keep: bool) -> io::Result<Self> {
        let connection = if keep { "keep-alive" } else { "close" };
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: {connection}\r\n\r\n"
        )?;
        Ok(Self { stream, part: Vec::with_capacity(CHUNK_BYTES + 1024) })
    }

    fn send(&mut self) -> io::Result<()> {
        if !self.part.is_empty() {
            write!(self.stream, "{:x}\r\n", self.part.len())?;
            self.stream.write_all(&self.part)?;
            self.stream.write_all(b"\r\n")?;
            self.part.clear();
        }
        Ok(())
    }

    pub fn end(mut self) -> io::Result<()> {
        self.send()?;
        self.stream.write_all(b"0\r\n\r\n")?;
        self.stream.flush()
    }
}

impl<W: Write> Write for ChunkedResponse<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.part.extend_from_slice(bytes);
        if self.part.len() >= CHUNK_BYTES {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(text: &str) -> Result<HttpRequest, u16> {
        read(&mut text.as_bytes(), &mut Vec::new()).map_err(|bad| match bad {
            RequestError::Disconnected => 0,
            RequestError::Refused(status, _) => status,
        })
    }

    #[test]
    fn requests() {
        let request =
            ask("GET /v1/newest?pattern=%2Fn%2F**&pattern=a+b&x HTTP/1.1\r\nAuthorization: Bearer s3cret \r\n\r\n")
                .unwrap();
        assert_eq!((request.method.as_str(), request.path.as_str(), request.keep), ("GET", "/v1/newest", true));
        assert_eq!(request.values("pattern").collect::<Vec<_>>(), ["/n/**", "a b"]);
        assert_eq!(
            (request.value("x"), request.value("y"), request.token.as_deref()),
            (Some(""), None, Some("s3cret"))
        );
        assert!(!ask("POST /v1/reload HTTP/1.1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").unwrap().keep);
        assert!(!ask("GET / HTTP/1.0\r\n\r\n").unwrap().keep);
    }

    #[test]
    fn refused() {
        assert_eq!(ask(""), Err(0));
        assert_eq!(ask("GET / HTTP/1.1\r\n"), Err(0), "cut off");
        assert_eq!(ask("nonsense\r\n\r\n"), Err(400));
        assert_eq!(ask("GET /?a=%zz HTTP/1.1\r\n\r\n"), Err(400));
        assert_eq!(ask(&format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(9000))), Err(431));
        assert_eq!(ask(&format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(40))), Err(431));
        for length in ["99999999999", "65537", "-1", "1e3", ""] {
            assert_eq!(ask(&format!("POST / HTTP/1.1\r\ncontent-length: {length}\r\n\r\n")), Err(413), "{length}");
        }
        assert_eq!(ask("POST / HTTP/1.1\r\ncontent-length: 65536\r\n\r\nshort"), Err(0), "cut off");
        assert_eq!(ask("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"), Err(411));
    }

    #[test]
    fn two_requests_in_one_segment() {
        let mut stream = "POST /a HTTP/1.1\r\ncontent-length: 3\r\n\r\nxyzGET /b HTTP/1.1\r\n\r\n".as_bytes();
        let mut buffer = Vec::new();
        let first = read(&mut stream, &mut buffer).unwrap();
        assert_eq!((first.path.as_str(), first.body.as_slice()), ("/a", &b"xyz"[..]));
        assert_eq!(read(&mut stream, &mut buffer).unwrap().path, "/b");
    }

    #[test]
    fn chunks() {
        let mut out = Vec::new();
        let mut chunks = ChunkedResponse::begin(&mut out, true).unwrap();
        chunks.write_all(b"hello").unwrap();
        chunks.end().unwrap();
        assert!(String::from_utf8(out).unwrap().ends_with("\r\n\r\n5\r\nhello\r\n0\r\n\r\n"));
    }
}
