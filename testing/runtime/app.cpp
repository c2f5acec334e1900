// The header in C++: regions end with their scope, also through an exception.
#include <stdexcept>

#include <wholegrain.h>

int main() {
    wholegrain::region all("cpp/all");
    try {
        wholegrain::region part("cpp/part");
        wg_value("cpp/value", 2.5, "s");
        throw std::runtime_error("out of the region");
    } catch (const std::runtime_error &) {
    }
    return 0;
}
