//! Messages of version 3 with the User-based Security Model: RFC 3412 (messages), 3414 (USM, MD5, SHA-1, DES), 3826 (AES), 7860 (SHA-2), and the
//! key extension of draft-blumenthal-aes-usm for AES with 192 and 256 bits.

use std::sync::Arc;

use aes::{Aes128, Aes192, Aes256};
use cipher::{AsyncStreamCipher, BlockDecryptMut, BlockEncryptMut, KeyIvInit, block_padding::NoPadding};
use des::Des;
use hmac::{Mac, SimpleHmac};
use sha2::digest::Digest;

use crate::ber::{self, BerError, BerReader};
use crate::message::{self, PduAnswer, PduRequest};

/// How far an answer's time may be behind: 150 s (RFC 3414, section 2.2.3).
const TIME_WINDOW_S: i64 = 150;
/// The bytes of a password that are hashed into a key (RFC 3414, section A.2).
const PASSWORD_BYTES: usize = 1 << 20;
/// The shortest password (RFC 3414, section 11.2).
pub const PASSWORD_BYTES_MIN: usize = 8;
/// The longest identifier of an engine (RFC 3411, section 5).
const ENGINE_ID_BYTES_MAX: usize = 32;
/// The largest message that we accept.
const MESSAGE_BYTES_MAX: i64 = 65_507;

const FLAG_AUTH: u8 = 1;
const FLAG_PRIVACY: u8 = 2;
const FLAG_REPORTABLE: u8 = 4;

/// How messages are authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthKind {
    Md5,
    Sha1,
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

/// How messages are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrivacyKind {
    Des,
    Aes128,
    Aes192,
    Aes256,
}

/// Calls `$f` with the type of the hash as `$hash`.
macro_rules! with_hash {
    ($kind:expr, $hash:ident => $f:expr) => {
        match $kind {
            AuthKind::Md5 => {
                type $hash = md5::Md5;
                $f
            }
            AuthKind::Sha1 => {
                type $hash = sha1::Sha1;
                $f
            }
            AuthKind::Sha224 => {
                type $hash = sha2::Sha224;
                $f
            }
            AuthKind::Sha256 => {
                type $hash = sha2::Sha256;
                $f
            }
            AuthKind::Sha384 => {
                type $hash = sha2::Sha384;
                $f
            }
            AuthKind::Sha512 => {
                type $hash = sha2::Sha512;
                $f
            }
        }
    };
}

impl AuthKind {
    /// The names in files of credentials.
    pub const NAMES: [(&str, Self); 6] = [
        ("md5", Self::Md5),
        ("sha1", Self::Sha1),
        ("sha224", Self::Sha224),
        ("sha256", Self::Sha256),
        ("sha384", Self::Sha384),
        ("sha512", Self::Sha512),
    ];

    /// The bytes of the code in a message (RFC 3414, sections 6 and 7; RFC 7860, section 4).
    fn code_bytes(self) -> usize {
        match self {
            Self::Md5 | Self::Sha1 => 12,
            Self::Sha224 => 16,
            Self::Sha256 => 24,
            Self::Sha384 => 32,
            Self::Sha512 => 48,
        }
    }

    fn hash(self, parts: &[&[u8]]) -> Vec<u8> {
        with_hash!(self, Hash => {
            let mut hash = Hash::new();
            parts.iter().for_each(|part| hash.update(part));
            hash.finalize().to_vec()
        })
    }

    /// The key of a password, before it is bound to an engine (RFC 3414, section A.2).
    fn key(self, password: &[u8]) -> Vec<u8> {
        with_hash!(self, Hash => {
            let mut hash = Hash::new();
            let mut block = [0; 4096];
            for chunk in 0..PASSWORD_BYTES / block.len() {
                for (at, byte) in block.iter_mut().enumerate() {
                    *byte = password[(chunk * 4096 + at) % password.len()];
                }
                hash.update(block);
            }
            hash.finalize().to_vec()
        })
    }

    fn code(self, key: &[u8], message: &[u8]) -> Vec<u8> {
        let mut code = with_hash!(self, Hash => {
            // A key of any length is allowed: new_from_slice cannot fail.
            SimpleHmac::<Hash>::new_from_slice(key).map(|mac| mac.chain_update(message).finalize().into_bytes().to_vec())
        })
        .unwrap_or_default();
        code.truncate(self.code_bytes());
        code
    }
}

impl PrivacyKind {
    /// The names in files of credentials.
    pub const NAMES: [(&str, Self); 4] =
        [("des", Self::Des), ("aes128", Self::Aes128), ("aes192", Self::Aes192), ("aes256", Self::Aes256)];

    fn key_bytes(self) -> usize {
        match self {
            Self::Des | Self::Aes128 => 16,
            Self::Aes192 => 24,
            Self::Aes256 => 32,
        }
    }
}

/// A user with keys that are not bound to an engine yet. To make them from passwords takes a million bytes of hashing, so devices share them.
pub struct UsmUser {
    name: Vec<u8>,
    context: Vec<u8>,
    auth: Option<(AuthKind, Vec<u8>)>,
    privacy: Option<(PrivacyKind, Vec<u8>)>,
}

impl UsmUser {
    /// A user with passwords of at least [`PASSWORD_BYTES_MIN`] bytes. `privacy` counts only with `auth`.
    pub fn new(
        name: &str,
        context: &str,
        auth: Option<(AuthKind, &str)>,
        privacy: Option<(PrivacyKind, &str)>,
    ) -> Self {
        let privacy = auth.and_then(|(auth, _)| privacy.map(|(kind, password)| (kind, auth.key(password.as_bytes()))));
        let auth = auth.map(|(kind, password)| (kind, kind.key(password.as_bytes())));
        Self { name: name.into(), context: context.into(), auth, privacy }
    }

    fn flags(&self) -> u8 {
        (u8::from(self.auth.is_some()) * FLAG_AUTH) | (u8::from(self.privacy.is_some()) * FLAG_PRIVACY)
    }
}

/// What an agent's engine says of itself, and the keys for it.
struct Engine {
    id: Vec<u8>,
    boots: i64,
    /// The engine's time in seconds, when it was `at_ns` here.
    time: i64,
    at_ns: i64,
    auth_key: Vec<u8>,
    privacy_key: Vec<u8>,
}

impl Engine {
    fn time_now(&self, now_ns: i64) -> i64 {
        (self.time + (now_ns - self.at_ns).max(0) / 1_000_000_000).min(i64::from(i32::MAX))
    }
}

/// Exchanges messages with one engine.
pub struct UsmSession {
    user: Arc<UsmUser>,
    engine: Option<Engine>,
    /// Differs in each encrypted message to one engine.
    salt: u64,
}

/// What a message of version 3 says.
#[derive(Debug, PartialEq)]
pub enum UsmMessage {
    /// The answer to a request.
    Answer(PduAnswer),
    /// The engine made itself known, or its time: the request is to be sent again.
    Synchronised,
    /// The engine refuses the user, the password or the level of security.
    Refused(&'static str),
}

impl UsmSession {
    /// A session without knowledge of the engine. `salt` is a random number.
    pub fn new(user: Arc<UsmUser>, salt: u64) -> Self {
        Self { user, engine: None, salt }
    }

    /// Forgets the engine, which may be another one by now.
    pub fn reset(&mut self) {
        self.engine = None;
    }

    /// How often the engine was started; `None` before the first message from it.
    pub fn boots(&self) -> Option<i64> {
        self.engine.as_ref().map(|engine| engine.boots)
    }

    /// Appends a message with this request; while the engine is not known, a message that asks for it.
    pub fn put_message(&mut self, out: &mut Vec<u8>, message_id: i32, request: &PduRequest<'_>, now_ns: i64) {
        let Some(engine) = &self.engine else {
            // RFC 3414, section 4: without user, names and security, to be answered by a report.
            let empty = PduRequest { kind: message::GET, repetitions: 0, names: &[], ..*request };
            let parameters = security_parameters(&[], 0, 0, &[], &[], &[]);
            return put_v3(out, message_id, FLAG_REPORTABLE, &parameters, |out| put_scoped(out, &[], &[], &empty));
        };
        let (boots, time) = (engine.boots, engine.time_now(now_ns));
        let flags = self.user.flags();
        let mut scoped = Vec::new();
        put_scoped(&mut scoped, &engine.id, &self.user.context, request);
        let mut salt_bytes = Vec::new();
        if let Some((kind, _)) = &self.user.privacy {
            self.salt = self.salt.wrapping_add(1);
            let salt = match kind {
                // The engine's boots and a number (RFC 3414, section 8.1.1.1).
                PrivacyKind::Des => ((boots as u64) << 32 | self.salt & 0xffff_ffff).to_be_bytes(),
                _ => self.salt.to_be_bytes(),
            };
            salt_bytes.extend(salt);
            encrypt(*kind, &engine.privacy_key, boots, time, &salt, &mut scoped);
        }
        let code_bytes = self.user.auth.as_ref().map_or(0, |(kind, _)| kind.code_bytes());
        let parameters =
            security_parameters(&engine.id, boots, time, &self.user.name, &vec![0; code_bytes], &salt_bytes);
        let start = out.len();
        put_v3(out, message_id, flags | FLAG_REPORTABLE, &parameters, |out| match &self.user.privacy {
            Some(_) => ber::put(out, ber::OCTET_STRING, |out| out.extend_from_slice(&scoped)),
            None => out.extend_from_slice(&scoped),
        });
        if let Some((kind, _)) = &self.user.auth {
            let code = kind.code(&engine.auth_key, &out[start..]);
            // The parameters are in the message as they are: the code is in front of the salt and its two bytes of type and length.
            if let Some(at) = out[start..].windows(parameters.len()).position(|window| window == parameters) {
                let end = start + at + parameters.len() - salt_bytes.len() - 2;
                out[end - code_bytes..end].copy_from_slice(&code);
            }
        }
    }

    /// Reads a message that should be the answer to `message_id`. Nothing of it is trusted before its code is checked.
    pub fn read_message(&mut self, bytes: &[u8], message_id: i32, now_ns: i64) -> Result<UsmMessage, BerError> {
        let whole = bytes;
        let mut message = BerReader::new(bytes).inner(ber::SEQUENCE)?;
        if message.integer()? != 3 {
            return Err(BerError("another version"));
        }
        let mut global = message.inner(ber::SEQUENCE)?;
        let (id, _max) = (global.integer()?, global.integer()?);
        let flags = global.tagged(ber::OCTET_STRING)?.first().copied().unwrap_or(0);
        if id != i64::from(message_id) || global.integer()? != 3 {
            return Err(BerError("another number of the message or model of security"));
        }
        let security = SecurityParameters::read(message.tagged(ber::OCTET_STRING)?)?;
        let is_authentic = flags & FLAG_AUTH != 0 && self.check_code(whole, &security);
        if flags & FLAG_AUTH != 0 && self.engine.is_some() && !is_authentic {
            return Err(BerError("its code is wrong"));
        }
        let mut decrypted;
        let mut scoped = if flags & FLAG_PRIVACY != 0 {
            let (Some(engine), Some((kind, _)), true) = (&self.engine, &self.user.privacy, is_authentic) else {
                return Err(BerError("encrypted, but not for us"));
            };
            decrypted = message.tagged(ber::OCTET_STRING)?.to_vec();
            decrypt(*kind, &engine.privacy_key, &security, &mut decrypted)?;
            BerReader::new(&decrypted).inner(ber::SEQUENCE)?
        } else {
            message.inner(ber::SEQUENCE)?
        };
        let _context_engine = scoped.tagged(ber::OCTET_STRING)?;
        let _context = scoped.tagged(ber::OCTET_STRING)?;
        let answer = message::read_answer(&mut scoped)?;
        if answer.kind == message::REPORT {
            return self.take_report(&answer, &security, now_ns);
        }
        if flags & (FLAG_AUTH | FLAG_PRIVACY) != self.user.flags() {
            return Err(BerError("an answer with less security than the request"));
        }
        self.check_time(&security, now_ns)?;
        Ok(UsmMessage::Answer(answer))
    }

    fn check_code(&self, whole: &[u8], security: &SecurityParameters<'_>) -> bool {
        let (Some(engine), Some((kind, _))) = (&self.engine, &self.user.auth) else { return false };
        let offset = security.code.as_ptr() as usize - whole.as_ptr() as usize;
        if security.code.len() != kind.code_bytes() || security.user != self.user.name || security.engine != engine.id {
            return false;
        }
        let mut zeroed = whole.to_vec();
        zeroed[offset..offset + security.code.len()].fill(0);
        let expected = kind.code(&engine.auth_key, &zeroed);
        // In the same time for every wrong code.
        expected.iter().zip(security.code).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
    }

    /// RFC 3414, section 3.2, step 7 b.
    fn check_time(&mut self, security: &SecurityParameters<'_>, now_ns: i64) -> Result<(), BerError> {
        let Some(engine) = self.engine.as_mut().filter(|engine| engine.id == security.engine) else {
            return Err(BerError("from another engine"));
        };
        if self.user.auth.is_none() {
            (engine.boots, engine.time, engine.at_ns) = (security.boots, security.time, now_ns);
            return Ok(());
        }
        let is_older = security.boots < engine.boots
            || security.boots == engine.boots && security.time < engine.time_now(now_ns) - TIME_WINDOW_S;
        if is_older || security.boots == i64::from(i32::MAX) {
            return Err(BerError("an old message"));
        }
        if security.boots > engine.boots || security.time > engine.time {
            (engine.boots, engine.time, engine.at_ns) = (security.boots, security.time, now_ns);
        }
        Ok(())
    }

    /// Handles a report by its name below usmStats (RFC 3414, section 5).
    fn take_report(
        &mut self,
        report: &PduAnswer,
        security: &SecurityParameters<'_>,
        now_ns: i64,
    ) -> Result<UsmMessage, BerError> {
        let usm_stats = [1, 3, 6, 1, 6, 3, 15, 1, 1];
        let number = report.values.first().and_then(|(name, _)| name.numbers().strip_prefix(&usm_stats));
        match number.and_then(<[u32]>::first) {
            Some(1) => Ok(UsmMessage::Refused("the level of security is not supported")),
            // The time or the name of the engine. Some agents send the former without a code, against the standard: the code of the next answer is
            // checked in any case.
            Some(2 | 4) => {
                self.learn(security, now_ns)?;
                Ok(UsmMessage::Synchronised)
            }
            Some(3) => Ok(UsmMessage::Refused("the user is not known")),
            Some(5) => Ok(UsmMessage::Refused("the password of authentication is wrong")),
            Some(6) => Ok(UsmMessage::Refused("the password of privacy is wrong")),
            _ => Err(BerError("a report that is not of the user-based model")),
        }
    }

    /// Takes the engine's name, boots and time, and makes the keys for it.
    fn learn(&mut self, security: &SecurityParameters<'_>, now_ns: i64) -> Result<(), BerError> {
        if security.engine.is_empty() || security.engine.len() > ENGINE_ID_BYTES_MAX {
            return Err(BerError("an engine without a name of 1 to 32 bytes"));
        }
        let localise = |kind: AuthKind, key: &[u8]| kind.hash(&[key, security.engine, key]);
        let auth = self.user.auth.as_ref();
        let auth_key = auth.map(|(kind, key)| localise(*kind, key)).unwrap_or_default();
        let privacy_key = match (auth, &self.user.privacy) {
            (Some((auth, _)), Some((kind, key))) => {
                let mut key = localise(*auth, key);
                while key.len() < kind.key_bytes() {
                    key.extend(auth.hash(&[&key]));
                }
                key
            }
            _ => Vec::new(),
        };
        let (id, boots, time) = (security.engine.to_vec(), security.boots, security.time);
        self.engine = Some(Engine { id, boots, time, at_ns: now_ns, auth_key, privacy_key });
        Ok(())
    }
}

/// The parameters of the security model in a message.
struct SecurityParameters<'a> {
    engine: &'a [u8],
    boots: i64,
    time: i64,
    user: &'a [u8],
    code: &'a [u8],
    salt: &'a [u8],
}

impl<'a> SecurityParameters<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, BerError> {
        let mut list = BerReader::new(bytes).inner(ber::SEQUENCE)?;
        let parameters = Self {
            engine: list.tagged(ber::OCTET_STRING)?,
            boots: list.integer()?,
            time: list.integer()?,
            user: list.tagged(ber::OCTET_STRING)?,
            code: list.tagged(ber::OCTET_STRING)?,
            salt: list.tagged(ber::OCTET_STRING)?,
        };
        let range = 0..=i64::from(i32::MAX);
        if !range.contains(&parameters.boots) || !range.contains(&parameters.time) {
            return Err(BerError("boots or time out of their range"));
        }
        Ok(parameters)
    }
}

/// The encoded parameters: OCTET STRING with a SEQUENCE.
fn security_parameters(engine: &[u8], boots: i64, time: i64, user: &[u8], code: &[u8], salt: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    ber::put(&mut out, ber::OCTET_STRING, |out| {
        ber::put(out, ber::SEQUENCE, |out| {
            ber::put(out, ber::OCTET_STRING, |out| out.extend_from_slice(engine));
            ber::put_integer(out, ber::INTEGER, boots);
            ber::put_integer(out, ber::INTEGER, time);
            for text in [user, code, salt] {
                ber::put(out, ber::OCTET_STRING, |out| out.extend_from_slice(text));
            }
        });
    });
    out
}

fn put_v3(out: &mut Vec<u8>, id: i32, flags: u8, parameters: &[u8], scoped: impl FnOnce(&mut Vec<u8>)) {
    ber::put(out, ber::SEQUENCE, |out| {
        ber::put_integer(out, ber::INTEGER, 3);
        ber::put(out, ber::SEQUENCE, |out| {
            ber::put_integer(out, ber::INTEGER, i64::from(id));
            ber::put_integer(out, ber::INTEGER, MESSAGE_BYTES_MAX);
            ber::put(out, ber::OCTET_STRING, |out| out.push(flags));
            // The user-based model.
            ber::put_integer(out, ber::INTEGER, 3);
        });
        out.extend_from_slice(parameters);
        scoped(out);
    });
}

fn put_scoped(out: &mut Vec<u8>, engine: &[u8], context: &[u8], request: &PduRequest<'_>) {
    ber::put(out, ber::SEQUENCE, |out| {
        ber::put(out, ber::OCTET_STRING, |out| out.extend_from_slice(engine));
        ber::put(out, ber::OCTET_STRING, |out| out.extend_from_slice(context));
        message::put_request(out, request);
    });
}

/// The initial vector of AES: boots, time and salt (RFC 3826, section 3.1.2.1).
fn aes_vector(boots: i64, time: i64, salt: &[u8]) -> [u8; 16] {
    let mut vector = [0; 16];
    vector[..4].copy_from_slice(&(boots as u32).to_be_bytes());
    vector[4..8].copy_from_slice(&(time as u32).to_be_bytes());
    vector[8..].copy_from_slice(salt);
    vector
}

/// The initial vector of DES: the second half of the key, mixed with the salt (RFC 3414, section 8.1.1.1).
fn des_vector(key: &[u8], salt: &[u8]) -> [u8; 8] {
    std::array::from_fn(|at| key[8 + at] ^ salt[at])
}

/// Encrypts in place. `key` has at least the bytes that the kind needs, `salt` 8.
fn encrypt(kind: PrivacyKind, key: &[u8], boots: i64, time: i64, salt: &[u8], data: &mut Vec<u8>) {
    let key = &key[..kind.key_bytes()];
    let vector = aes_vector(boots, time, salt);
    match kind {
        PrivacyKind::Des => {
            data.resize(data.len().next_multiple_of(8), 0);
            let length = data.len();
            let cipher = cbc::Encryptor::<Des>::new(key[..8].into(), &des_vector(key, salt).into());
            // The length is a multiple of the block: no padding is needed, and it cannot fail.
            let _ = cipher.encrypt_padded_mut::<NoPadding>(data, length);
        }
        PrivacyKind::Aes128 => cfb_mode::Encryptor::<Aes128>::new(key.into(), &vector.into()).encrypt(data),
        PrivacyKind::Aes192 => cfb_mode::Encryptor::<Aes192>::new(key.into(), &vector.into()).encrypt(data),
        PrivacyKind::Aes256 => cfb_mode::Encryptor::<Aes256>::new(key.into(), &vector.into()).encrypt(data),
    }
}

/// Decrypts in place. The padding of DES stays behind the data, which has its own length.
fn decrypt(kind: PrivacyKind, key: &[u8], security: &SecurityParameters<'_>, data: &mut [u8]) -> Result<(), BerError> {
    let key = &key[..kind.key_bytes()];
    if security.salt.len() != 8 {
        return Err(BerError("a salt that has not 8 bytes"));
    }
    let vector = aes_vector(security.boots, security.time, security.salt);
    match kind {
        PrivacyKind::Des => {
            let cipher = cbc::Decryptor::<Des>::new(key[..8].into(), &des_vector(key, security.salt).into());
            cipher.decrypt_padded_mut::<NoPadding>(data).map_err(|_| BerError("encrypted data of a broken length"))?;
        }
        PrivacyKind::Aes128 => cfb_mode::Decryptor::<Aes128>::new(key.into(), &vector.into()).decrypt(data),
        PrivacyKind::Aes192 => cfb_mode::Decryptor::<Aes192>::new(key.into(), &vector.into()).decrypt(data),
        PrivacyKind::Aes256 => cfb_mode::Decryptor::<Aes256>::new(key.into(), &vector.into()).decrypt(data),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The examples of RFC 3414, sections A.3.1 and A.3.2.
    #[test]
    fn keys_are_those_of_the_standard() {
        let engine = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
        for (kind, key, localised) in [
            (AuthKind::Md5, "9faf3283884e92834ebc9847d8edd963", "526f5eed9fcce26f8964c2930787d82b"),
            (AuthKind::Sha1, "9fb5cc0381497b3793528939ff788d5d79145211", "6695febc9288e36282235fc7151f128497b38f3f"),
        ] {
            let made = kind.key(b"maplesyrup");
            assert_eq!(hex(&made), key);
            assert_eq!(hex(&kind.hash(&[&made, &engine, &made])), localised);
        }
    }

    /// A session that knows the engine.
    fn session(user: &Arc<UsmUser>) -> UsmSession {
        let mut session = UsmSession::new(user.clone(), 1);
        let engine = SecurityParameters { engine: b"engine-1", boots: 3, time: 1000, user: &[], code: &[], salt: &[] };
        session.learn(&engine, 0).unwrap();
        session
    }

    #[test]
    fn only_a_genuine_message_of_the_time_is_taken() {
        let names = [crate::ber::Oid::new([1, 3, 6, 1, 2, 1, 1, 3, 0])];
        let request = PduRequest { kind: message::RESPONSE, id: 7, repetitions: 0, names: &names };
        for privacy in [PrivacyKind::Aes128, PrivacyKind::Des, PrivacyKind::Aes256] {
            let (auth, privacy) = (Some((AuthKind::Sha256, "password-1")), Some((privacy, "password-2")));
            let user = Arc::new(UsmUser::new("user", "", auth, privacy));
            let mut bytes = Vec::new();
            session(&user).put_message(&mut bytes, 7, &request, 0);
            let read = |bytes: &[u8], id, now_ns| session(&user).read_message(bytes, id, now_ns);
            assert!(matches!(read(&bytes, 7, 0), Ok(UsmMessage::Answer(answer)) if answer.values[0].0 == names[0]));
            assert!(read(&bytes, 8, 0).is_err(), "another number");
            assert_eq!(read(&bytes, 7, 200_000_000_000), Err(BerError("an old message")));
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(read(&damaged, 7, 0).is_err(), "bit {bit}");
            }
            for length in 0..bytes.len() {
                assert!(read(&bytes[..length], 7, 0).is_err(), "cut at {length}");
            }
        }
    }

    #[test]
    fn an_answer_without_the_security_of_the_request_is_not_taken() {
        let mut plain = session(&Arc::new(UsmUser::new("user", "", None, None)));
        let mut bytes = Vec::new();
        let request = PduRequest { kind: message::RESPONSE, id: 7, repetitions: 0, names: &[] };
        plain.put_message(&mut bytes, 7, &request, 0);
        assert!(plain.read_message(&bytes, 7, 0).is_ok());
        let signed = Arc::new(UsmUser::new("user", "", Some((AuthKind::Sha1, "password-1")), None));
        let refused = session(&signed).read_message(&bytes, 7, 0);
        assert_eq!(refused, Err(BerError("an answer with less security than the request")));
    }
}
