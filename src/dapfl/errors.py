"""Every error that Dap-FL raises on purpose.

    DapflError
    ├── UserError                 a mistake that the user can put right; the command line exits with 2
    │   ├── ConfigError             a setting that does not exist, or a value that is not allowed
    │   ├── DataError               a data set that is absent, corrupt or unreachable
    │   ├── TaskError               a task that cannot be found or loaded
    │   ├── TraceError              a resource trace that cannot be read
    │   ├── KeyFileError            a key file that is wrong, damaged, or locked
    │   ├── RunDirectoryError       not a run directory, or one that is in use or cannot be resumed
    │   └── DamagedFile             a file that is not what was written
    ├── CryptoError               what the cryptography refuses
    │   ├── KeyGenerationError      a key that may not be made (too small, bad primes)
    │   ├── InvalidCiphertext       not a ciphertext of this key
    │   ├── InvalidSignature        not signed by this key, or not this message
    │   ├── SigningFault            a signature that came out wrong: a fault of the hardware
    │   ├── EnvelopeError           an envelope that does not open
    │   ├── InvalidProof            something that is not proved: what it claims may be false
    │   ├── InvalidShare            a decryption share that is false, or of something else
    │   └── EncodingError           numbers that cannot be packed without loss of meaning
    ├── ProtocolError             a message that a participant refuses; `reason` names why
    ├── TransportError            messages that cannot be delivered
    │   └── WorkerError             a worker process that keeps dying
    ├── StorageError              a file that cannot be written: a full disk, no permission
    ├── NothingLearned            a run in which no contribution was ever aggregated
    └── PolicyError               a hyper-parameter policy used out of order, or unusable weights

A message says what happened, to what, and what to do. Secrets never appear in one.
"""


class DapflError(Exception):
    """The base class of all errors that Dap-FL raises on purpose."""


class UserError(DapflError):
    """A mistake that the user can put right."""


class ConfigError(UserError):
    """A setting that does not exist, or a value that is not allowed."""


class DataError(UserError):
    """A data set that is absent, corrupt or unreachable."""


class TaskError(UserError):
    """A learning task that cannot be found or loaded."""


class TraceError(UserError):
    """A resource trace that cannot be read."""


class KeyFileError(UserError):
    """A key file that is wrong, damaged, or locked."""


class RunDirectoryError(UserError):
    """Not a run directory, or one that is in use or cannot be resumed."""


class DamagedFile(UserError):
    """A file that is not what was written: its checksum does not match."""


class CryptoError(DapflError):
    """What the cryptography refuses."""


class KeyGenerationError(CryptoError):
    """A key that may not be made."""


class InvalidCiphertext(CryptoError):
    """Not a ciphertext of this key."""


class InvalidSignature(CryptoError):
    """Not signed by this key, or not this message."""


class SigningFault(CryptoError):
    """A signature that came out wrong, which must not leave the device."""


class EnvelopeError(CryptoError):
    """An envelope that does not open."""


class InvalidProof(CryptoError):
    """Something that is not proved: what it claims may be false."""


class InvalidShare(CryptoError):
    """A decryption share that is false, or of something else."""


class EncodingError(CryptoError):
    """Numbers that cannot be packed without loss of meaning."""


class ProtocolError(DapflError):
    """A message that a participant refuses.

    `reason` is a short, stable name such as ``bad-signature`` or ``replayed``; it is what
    rounds.jsonl counts and what leaves a device, never the message text.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type["ProtocolError"], tuple[str, str]]:
        return type(self), (self.reason, self.detail)


class TransportError(DapflError):
    """Messages that cannot be delivered."""


class WorkerError(TransportError):
    """A worker process that keeps dying."""


class StorageError(DapflError):
    """A file that cannot be written: a full disk, a missing permission."""


class NothingLearned(DapflError):
    """A run that ended without a single aggregate: it has no trained model."""


class PolicyError(DapflError):
    """A hyper-parameter policy used out of order, or weights that do not fit it."""
